package ec2test

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// The limits of tags ("Tag your Amazon EC2 resources", tag restrictions).
const (
	maxTags       = 50
	maxKeyRunes   = 128
	maxValueRunes = 256
)

// checkTags reads the tag specifications of a launch.
func (l *launch) checkTags() error {
	l.tags = map[string]map[string]string{}
	allowed := []string{"instance", "volume", "network-interface", "elastic-gpu"}
	if l.in.spot() {
		allowed = append(allowed, "spot-instances-request")
	}
	for _, s := range l.in.TagSpecifications {
		if !slices.Contains(allowed, s.ResourceType) {
			return invalid("'%s' is not a valid taggable resource type for this operation.", s.ResourceType)
		}
		if len(s.Tags) == 0 {
			return missing("Tag")
		}
		if l.tags[s.ResourceType] != nil {
			return invalid("The same resource type may not be specified more than once in tag specifications")
		}
		tags, err := readTags(s.Tags, nil)
		if err != nil {
			return err
		}
		if s.ResourceType == "instance" && l.in.MetadataOptions.InstanceMetadataTags == "enabled" {
			if err := checkMetadataKeys(tags); err != nil {
				return err
			}
		}
		l.tags[s.ResourceType] = tags
	}
	return nil
}

// readTags returns the tags that a resource has after some are set.
func readTags(in []tagInput, has map[string]string) (map[string]string, error) {
	tags := maps.Clone(has)
	if tags == nil {
		tags = map[string]string{}
	}
	seen := map[string]bool{}
	for _, t := range in {
		switch {
		case t.Key == "":
			return nil, missing("Tag.Key")
		case seen[t.Key]:
			return nil, invalid("Duplicate tag key '%s' specified.", t.Key)
		case strings.HasPrefix(strings.ToLower(t.Key), "aws:"):
			return nil, invalid("Tag keys starting with 'aws:' are reserved for internal use")
		case utf8.RuneCountInString(t.Key) > maxKeyRunes:
			return nil, invalid("Tag key exceeds the maximum length of %d characters", maxKeyRunes)
		case utf8.RuneCountInString(t.Value) > maxValueRunes:
			return nil, invalid("Tag value exceeds the maximum length of %d characters", maxValueRunes)
		case !utf8.ValidString(t.Key) || !utf8.ValidString(t.Value):
			return nil, invalid("Tags must be UTF-8")
		}
		seen[t.Key] = true
		tags[t.Key] = t.Value
	}
	if len(tags) > maxTags {
		return nil, refuse("TagLimitExceeded", "The maximum number of tags for a resource is %d.", maxTags)
	}
	return tags, nil
}

// checkMetadataKeys keeps what holds when tags are readable in the metadata
// service: a key is a path element there.
func checkMetadataKeys(tags map[string]string) error {
	allowed := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-=._:,@", r)
	}
	for key := range tags {
		if key == "." || key == ".." || key == "_index" || strings.ContainsFunc(key, func(r rune) bool { return !allowed(r) }) {
			return invalid("'%s' is not a valid tag key. Tag keys must match pattern ([0-9a-zA-Z\\-_+=,.@:]{1,255}), and must not be a reserved name ('.', '..', '_index')", key)
		}
	}
	return nil
}

type tagItem struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func tagItems(tags map[string]string) []tagItem {
	var out []tagItem
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, tagItem{k, tags[k]})
	}
	return out
}

type createTagsInput struct {
	dryRun
	ResourceIds []string   `q:"ResourceId,required"`
	Tags        []tagInput `q:"Tag,required"`
}

type returned struct {
	Return bool `xml:"return"`
}

// A tagger sets the tags of resources.
type tagger struct{ fleet *fleet }

// createTags sets tags on all of the resources or on none.
func (t *tagger) createTags(_ call, in *createTagsInput) (*returned, error) {
	var stores []*map[string]string
	for _, id := range in.ResourceIds {
		store, err := t.tagsOf(id)
		if err != nil {
			return nil, err
		}
		stores = append(stores, store)
	}
	results := make([]map[string]string, len(stores))
	for i, store := range stores {
		tags, err := readTags(in.Tags, *store)
		if err != nil {
			return nil, err
		}
		results[i] = tags
	}
	for i, store := range stores {
		*store = results[i]
	}
	return &returned{true}, nil
}

// tagsOf returns where the tags of a resource are.
func (t *tagger) tagsOf(id string) (*map[string]string, error) {
	kind, _, _ := strings.Cut(id, "-")
	switch kind {
	case "i":
		if m := t.fleet.machines[id]; m != nil {
			return &m.tags, nil
		}
		return nil, unknownMachines(id)
	case "eni":
		if i := t.fleet.network.interfaces[id]; i != nil {
			return &i.tags, nil
		}
		return nil, unknownInterface(id)
	case "sir":
		if s := t.fleet.spot.requests[id]; s != nil {
			return &s.tags, nil
		}
		return nil, unknownSpotRequest(id)
	case "vol":
		for _, m := range t.fleet.machines {
			if m.volume == id && m.state != terminated {
				return &m.volumeTags, nil
			}
		}
		return nil, refuse("InvalidVolume.NotFound", "The volume '%s' does not exist.", id)
	}
	return nil, refuse("InvalidID", "The ID '%s' is not valid", id)
}
