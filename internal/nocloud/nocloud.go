// Package nocloud writes and reads the small CD image from which cloud-init
// takes user data where there is no metadata service ("NoCloud", cloud-init
// documentation: an ISO 9660 or FAT volume labelled cidata with the files
// user-data and meta-data).
//
// The image is ISO 9660 (ECMA-119) with Joliet names. Equal files make equal
// images, byte for byte.
package nocloud

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"
)

// The files of a seed.
const (
	UserData      = "user-data"
	MetaData      = "meta-data"
	NetworkConfig = "network-config"
)

const (
	sector      = 2048
	volumeLabel = "cidata"

	primarySector    = 16
	jolietSector     = 17
	terminatorSector = 18
	primaryPathTable = 19 // little endian, then big endian
	jolietPathTable  = 21
	primaryRoot      = 23
	jolietRoot       = 24
	firstFileSector  = 25
)

// Seed returns the image of a machine with that ID, host name and user data, and with a
// configuration of its network unless that is nil.
func Seed(instanceID, hostname string, userData, network []byte) ([]byte, error) {
	meta := fmt.Sprintf("instance-id: %s\nlocal-hostname: %s\n", instanceID, hostname)
	files := map[string][]byte{MetaData: []byte(meta), UserData: userData}
	if network != nil {
		files[NetworkConfig] = network
	}
	return Image(files)
}

// Image returns an image with these files. Names are up to 30 ASCII characters;
// there are at most as many as one directory sector holds, about 20.
func Image(files map[string][]byte) ([]byte, error) {
	names := slices.Sorted(maps.Keys(files))
	at := uint32(firstFileSector)
	primary, joliet := newDirectory(primaryRoot), newDirectory(jolietRoot)
	var data []byte
	for _, name := range names {
		if len(name) > 30 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("%.40q is no name for a file in an image", name)
		}
		size := uint32(len(files[name]))
		primary = append(primary, record([]byte(strings.ToUpper(name)+".;1"), at, size, false)...)
		joliet = append(joliet, record(wide(name), at, size, false)...)
		data = append(data, padded(files[name])...)
		at += uint32(len(padded(files[name])) / sector)
	}
	if len(primary) > sector || len(joliet) > sector {
		return nil, errors.New("too many files for one image")
	}
	out := make([]byte, primarySector*sector, int(at)*sector)
	out = append(out, descriptor(1, at, primaryPathTable, primaryRoot, []byte(volumeLabel))...)
	out = append(out, descriptor(2, at, jolietPathTable, jolietRoot, wide(volumeLabel))...)
	out = append(out, padded([]byte("\xffCD001\x01"))...)
	out = append(out, pathTable(binary.LittleEndian, primaryRoot)...)
	out = append(out, pathTable(binary.BigEndian, primaryRoot)...)
	out = append(out, pathTable(binary.LittleEndian, jolietRoot)...)
	out = append(out, pathTable(binary.BigEndian, jolietRoot)...)
	out = append(out, padded(primary)...)
	out = append(out, padded(joliet)...)
	return append(out, data...), nil
}

func padded(b []byte) []byte {
	return append(slices.Clip(b), make([]byte, (sector-len(b)%sector)%sector)...)
}

// wide returns s in UCS-2, big endian, as Joliet writes names.
func wide(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = binary.BigEndian.AppendUint16(out, u)
	}
	return out
}

// descriptor returns a volume descriptor (ECMA-119 8.4 and 8.5).
func descriptor(kind byte, sectors uint32, path, root uint32, label []byte) []byte {
	d := make([]byte, sector)
	d[0], d[6] = kind, 1
	copy(d[1:], "CD001")
	fill := []byte(" ")
	if kind == 2 {
		fill = []byte{0, ' '}
		copy(d[88:], "%/E") // Joliet, level 3
	}
	for _, text := range [][2]int{{8, 40}, {40, 72}, {190, 813}} {
		copy(d[text[0]:text[1]], bytes.Repeat(fill, (text[1]-text[0])/len(fill)))
	}
	copy(d[40:72], label)
	bothEnds32(d[80:], sectors)
	bothEnds16(d[120:], 1)
	bothEnds16(d[124:], 1)
	bothEnds16(d[128:], sector)
	bothEnds32(d[132:], 10) // size of the path table
	binary.LittleEndian.PutUint32(d[140:], path)
	binary.BigEndian.PutUint32(d[148:], path+1)
	copy(d[156:190], record([]byte{0}, root, sector, true))
	for _, date := range []int{813, 830, 847, 864} {
		copy(d[date:], "1970010100000000\x00")
	}
	d[881] = 1
	return d
}

func pathTable(order binary.ByteOrder, root uint32) []byte {
	t := make([]byte, sector)
	t[0] = 1
	order.PutUint32(t[2:], root)
	order.PutUint16(t[6:], 1)
	return t
}

// newDirectory returns the two entries that every directory begins with.
func newDirectory(at uint32) []byte {
	return append(record([]byte{0}, at, sector, true), record([]byte{1}, at, sector, true)...)
}

// record returns a directory record (ECMA-119 9.1).
func record(name []byte, at, size uint32, dir bool) []byte {
	r := make([]byte, 33+len(name)+(len(name)+1)%2)
	r[0] = byte(len(r))
	bothEnds32(r[2:], at)
	bothEnds32(r[10:], size)
	r[18], r[19], r[20] = 70, 1, 1 // 1 January 1970
	if dir {
		r[25] = 2
	}
	bothEnds16(r[28:], 1)
	r[32] = byte(len(name))
	copy(r[33:], name)
	return r
}

func bothEnds32(b []byte, v uint32) {
	binary.LittleEndian.PutUint32(b, v)
	binary.BigEndian.PutUint32(b[4:], v)
}

func bothEnds16(b []byte, v uint16) {
	binary.LittleEndian.PutUint16(b, v)
	binary.BigEndian.PutUint16(b[2:], v)
}

// ReadFile returns one file of an image that [Image] could have made.
func ReadFile(image []byte, name string) ([]byte, error) {
	root := jolietRoot * sector
	if len(image) < firstFileSector*sector || string(image[primarySector*sector+1:][:5]) != "CD001" {
		return nil, errors.New("not an ISO 9660 image")
	}
	for dir := image[root:][:sector]; len(dir) > 33 && int(dir[0]) > 33 && int(dir[0]) <= len(dir); dir = dir[dir[0]:] {
		length := int(dir[32])
		if 33+length > int(dir[0]) || !bytes.Equal(dir[33:][:length], wide(name)) {
			continue
		}
		from := int(binary.LittleEndian.Uint32(dir[2:])) * sector
		size := int(binary.LittleEndian.Uint32(dir[10:]))
		if from > len(image) || size > len(image)-from {
			return nil, errors.New("the image is cut off")
		}
		return image[from:][:size], nil
	}
	return nil, fmt.Errorf("the image has no file %.64q", name)
}
