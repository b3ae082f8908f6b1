package spot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// defaultProbeTimeout is how long Detect waits for metadata services.
const defaultProbeTimeout = time.Second

// DetectOptions configure Detect.
type DetectOptions struct {
	Options                    // of the detector; a BaseURL is probed with every protocol
	Provider     string        // aws, gcp, azure, proxmox or none; empty: probe
	ProbeTimeout time.Duration // 0: 1s
}

// Detect returns the detector for the named provider, or for the one whose
// metadata service answers. With a name, no service is asked.
//
// Fails with Invalid for an unknown name, and with NotFound when no metadata
// service answers: on a machine whose network is not up yet, call it again. A
// service that answers but refuses or is broken is Denied, Throttled or
// Unavailable. nil is allowed.
func Detect(ctx context.Context, o *DetectOptions) (nstance.SpotDetector, error) {
	if o == nil {
		o = &DetectOptions{}
	}
	switch o.Provider {
	case "":
		return probe(ctx, o)
	case "aws":
		return asDetector(NewAWS(&o.Options))
	case "gcp":
		return asDetector(NewGCP(&o.Options))
	case "azure":
		return asDetector(NewAzure(&o.Options))
	case "proxmox", "none":
		return None{}, nil
	}
	return nil, nstance.FieldError("provider", "use aws, gcp, azure, proxmox or none, or leave it empty",
		"no detector for %q", o.Provider)
}

// asDetector returns a nil interface, not one with a nil pointer, on an error.
func asDetector[D nstance.SpotDetector](d D, err error) (nstance.SpotDetector, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// A prober can tell whether its own metadata service is there.
type prober interface {
	nstance.SpotDetector
	probe(ctx context.Context) error
}

// probe asks all services at once and returns the first that answers correctly.
func probe(ctx context.Context, o *DetectOptions) (nstance.SpotDetector, error) {
	aws, err := NewAWS(&o.Options)
	if err != nil {
		return nil, err
	}
	gcp, err := NewGCP(&o.Options)
	if err != nil {
		return nil, err
	}
	azure, err := NewAzure(&o.Options)
	if err != nil {
		return nil, err
	}
	if err := validate.Setting("probe_timeout", o.ProbeTimeout, time.Hour); err != nil {
		return nil, err
	}
	timeout := cmp.Or(o.ProbeTimeout, defaultProbeTimeout)
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := first(within, aws, gcp, azure)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("probe metadata services: %w", ctx.Err())
	}
	return found, err
}

// first returns the first candidate that finds its service, after every probe
// has ended.
func first(ctx context.Context, candidates ...prober) (nstance.SpotDetector, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		prober prober
		err    error
	}
	outcomes := make(chan outcome)
	for _, c := range candidates {
		go func() { outcomes <- outcome{c, c.probe(ctx)} }()
	}
	var (
		found   nstance.SpotDetector
		refused []error
	)
	for range candidates {
		switch got := <-outcomes; {
		case got.err == nil && found == nil:
			found = got.prober
			cancel()
		case answered(got.err):
			refused = append(refused, got.err)
		}
	}
	switch {
	case found != nil:
		return found, nil
	case len(refused) > 0:
		return nil, fmt.Errorf("a metadata service answers but cannot be used: %w", errors.Join(refused...))
	}
	return nil, nstance.Errorf(nstance.NotFound, "no metadata service answers")
}

// answered reports whether err is an answer that may come from the service. It is
// false for no answer and for the answer of another service.
func answered(err error) bool {
	if _, unanswered := errors.AsType[*noAnswer](err); unanswered {
		return false
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	switch nstance.CodeOf(err) {
	case nstance.Denied, nstance.Throttled, nstance.Unavailable:
		return true
	}
	return false
}

// probe reads a key that only EC2 has: other clouds imitate the rest.
func (a *AWS) probe(ctx context.Context) error {
	_, err := a.Interruptible(ctx)
	return err
}

// probe requires the header that Google sets on every answer.
func (g *GCP) probe(ctx context.Context) error {
	a, err := g.get(ctx, gcpPreemptible, requestTimeout)
	if err == nil && a.header.Get(gcpFlavor) != gcpFlavorValue {
		return nstance.Errorf(nstance.Internal, "the service is not Google's")
	}
	return err
}

// probe reads a document that only Azure has.
func (a *Azure) probe(ctx context.Context) error {
	_, err := a.self(ctx)
	return err
}

// None is the detector of machines without a metadata service: it yields nothing
// and never fails. The zero value is ready.
type None struct{}

var _ nstance.SpotDetector = None{}

// Interruptible returns false.
func (None) Interruptible(context.Context) (bool, error) { return false, nil }

// Watch yields nothing and ends with ctx.
func (None) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(func(nstance.Notice, error) bool) { <-ctx.Done() }
}
