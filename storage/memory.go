package storage

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
)

// Memory is a Store that lives as long as its process. It waits for nothing,
// so it works in a testing/synctest bubble. It is safe for concurrent use.
type Memory struct {
	mu      sync.RWMutex
	objects map[string]Object
	writes  uint64 // so far; the source of versions
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{objects: map[string]Object{}} }

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (Object, error) {
	if err := begin(ctx, "get", key); err != nil {
		return Object{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	obj, ok := m.objects[key]
	if !ok {
		return Object{}, notFound("get", key)
	}
	obj.Data = bytes.Clone(obj.Data)
	return obj, nil
}

// PutIfAbsent implements Store.
func (m *Memory) PutIfAbsent(ctx context.Context, key string, data []byte) (Version, error) {
	return m.put(ctx, key, data, ifAbsent)
}

// PutIfMatch implements Store.
func (m *Memory) PutIfMatch(ctx context.Context, key string, data []byte, v Version) (Version, error) {
	return m.put(ctx, key, data, ifMatch(v))
}

func (m *Memory) put(ctx context.Context, key string, data []byte, may condition) (Version, error) {
	if err := beginPut(ctx, key, data); err != nil {
		return "", err
	}
	data = append([]byte{}, data...)
	m.mu.Lock()
	defer m.mu.Unlock()
	obj, ok := m.objects[key]
	if err := may(key, obj.Version, ok); err != nil {
		return "", err
	}
	m.writes++
	v := Version("m" + strconv.FormatUint(m.writes, 10))
	m.objects[key] = Object{Key: key, Data: data, Version: v}
	return v, nil
}

// DeleteIfMatch implements Store.
func (m *Memory) DeleteIfMatch(ctx context.Context, key string, v Version) error {
	if err := begin(ctx, "delete", key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	obj, ok := m.objects[key]
	if err := mayDelete(key, v, obj.Version, ok); err != nil {
		return err
	}
	delete(m.objects, key)
	return nil
}

// List implements Store. The keys are those at the time of the call.
func (m *Memory) List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, key := range m.keys(prefix, after) {
			if err := stopped(ctx, "list", prefix); err != nil {
				yield(Entry{}, err)
				return
			}
			m.mu.RLock()
			obj, ok := m.objects[key]
			m.mu.RUnlock()
			if ok && !yield(Entry{Key: key, Version: obj.Version, Size: int64(len(obj.Data))}, nil) {
				return
			}
		}
		if err := stopped(ctx, "list", prefix); err != nil {
			yield(Entry{}, err)
		}
	}
}

func (m *Memory) keys(prefix, after string) []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var keys []string
	for key := range m.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// A condition says whether a key may be written, given what is there.
type condition func(key string, have Version, exists bool) error

func ifAbsent(key string, _ Version, exists bool) error {
	if exists {
		return nstance.Errorf(nstance.Conflict, "put %s: it exists already", key)
	}
	return nil
}

func ifMatch(want Version) condition {
	return func(key string, have Version, exists bool) error {
		switch {
		case !exists:
			return nstance.Errorf(nstance.Conflict, "put %s: it is gone", key)
		case have != want:
			return nstance.Errorf(nstance.Conflict, "put %s: it has changed", key)
		}
		return nil
	}
}

func mayDelete(key string, want, have Version, exists bool) error {
	switch {
	case !exists:
		return notFound("delete", key)
	case have != want:
		return nstance.Errorf(nstance.Conflict, "delete %s: it has changed", key)
	}
	return nil
}

func notFound(op, key string) error {
	return nstance.Errorf(nstance.NotFound, "%s %s: there is no such object", op, key)
}
