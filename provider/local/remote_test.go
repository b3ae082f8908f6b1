//go:build unix

package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/providertest"
)

// socket returns a path that is short enough for one.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "loc")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// serve serves p and returns its address and a function that stops it.
func serve(t *testing.T, p nstance.Provider) (remote *local.Remote, stop func()) {
	t.Helper()
	path := socket(t)
	l, err := local.Listen(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- local.Serve(ctx, l, p) }()
	done := false
	stop = func() {
		cancel()
		if !done {
			done = true
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return dial(t, path), stop
}

func dial(t *testing.T, path string) *local.Remote {
	t.Helper()
	r, err := local.Dial(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// TestRemoteProvider runs the whole contract through a socket.
func TestRemoteProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		dir := t.TempDir()
		remote, _ := serve(t, open(t, local.Options{Command: idle, Dir: dir, Grace: 50 * time.Millisecond}))
		return providertest.Subject{
			Provider: remote, Spot: true, Park: modes,
			UserData: func(ctx context.Context, m nstance.Machine) ([]byte, error) {
				for _, name := range []string{local.EnvMetadataURL, local.EnvProvider} {
					t.Setenv(name, environment(t, dir, m.ID, name))
				}
				return local.UserData(ctx)
			},
			BadArgs: map[string]json.RawMessage{"boot_delay": json.RawMessage(`{"boot_delay": "-1s"}`)},
		}
	})
}

// script is a provider with scripted answers.
type script struct {
	err   error
	block chan struct{} // closed when a call has ended with its context
	after func()        // what such a call does then; may be nil
	specs chan nstance.MachineSpec
	list  []nstance.Machine
}

func (s *script) answer(ctx context.Context) error {
	if s.block != nil {
		<-ctx.Done()
		if s.after != nil {
			s.after()
		}
		close(s.block)
		return ctx.Err()
	}
	return s.err
}

func (s *script) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if s.specs != nil {
		s.specs <- spec
	}
	return nstance.Machine{ID: spec.ID}, s.answer(ctx)
}

func (s *script) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	return nstance.Machine{ID: id}, s.answer(ctx)
}

func (s *script) Delete(ctx context.Context, _ nstance.Machine) error { return s.answer(ctx) }

func (*script) ParkModes() []nstance.ParkMode { return modes }

func (s *script) Park(ctx context.Context, _ nstance.Machine, mode nstance.ParkMode) error {
	if mode != nstance.ParkHibernated {
		return fmt.Errorf("mode %q was asked for", mode)
	}
	return s.answer(ctx)
}

func (s *script) Wake(ctx context.Context, _ nstance.Machine) error { return s.answer(ctx) }

func (s *script) List(ctx context.Context, _ nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for _, m := range s.list {
			if !yield(m, nil) {
				return
			}
		}
		if err := s.answer(ctx); err != nil {
			yield(nstance.Machine{}, err)
		}
	}
}

// each makes every call once and returns the results.
func each(ctx context.Context, p *local.Remote) map[string]error {
	spec := newSpec()
	_, create := p.Create(ctx, spec)
	_, get := p.Get(ctx, spec.ID)
	var list error
	for _, err := range p.List(ctx, owner) {
		list = err
	}
	m := nstance.Machine{ID: spec.ID, Owner: owner}
	return map[string]error{
		"create": create, "get": get, "list": list, "delete": p.Delete(ctx, m),
		"park": p.Park(ctx, m, nstance.ParkHibernated), "wake": p.Wake(ctx, m),
	}
}

func TestRemoteErrors(t *testing.T) {
	t.Run("are returned with code and fields", func(t *testing.T) {
		for _, code := range []nstance.Code{
			nstance.Invalid, nstance.NotFound, nstance.Conflict, nstance.Capacity, nstance.Quota,
			nstance.Throttled, nstance.Denied, nstance.Ambiguous, nstance.Unavailable, nstance.Internal,
		} {
			want := &nstance.Error{Code: code, Field: "args.x", Msg: "no such thing", Remedy: "take another"}
			remote, stop := serve(t, &script{err: want})
			for op, err := range each(t.Context(), remote) {
				require.Equal(t, want, err, "%s", op)
			}
			stop()
		}
	})
	t.Run("keep their wrapping text", func(t *testing.T) {
		remote, _ := serve(t, &script{err: fmt.Errorf("zone a: %w", nstance.FieldError("type", "", "is unknown"))})
		for op, err := range each(t.Context(), remote) {
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err), op)
			require.EqualError(t, err, "zone a: type: is unknown", op)
		}
	})
	t.Run("without a code are internal", func(t *testing.T) {
		remote, _ := serve(t, &script{err: errors.New("oops")})
		for op, err := range each(t.Context(), remote) {
			require.Equal(t, nstance.Internal, nstance.CodeOf(err), op)
		}
	})
	t.Run("are truncated when too long", func(t *testing.T) {
		remote, _ := serve(t, &script{err: nstance.Errorf(nstance.Quota, "%s", strings.Repeat("x", 1<<20))})
		for op, err := range each(t.Context(), remote) {
			require.Equal(t, nstance.Quota, nstance.CodeOf(err), op)
			require.Less(t, len(err.Error()), 5000, op)
		}
	})
}

func TestRemoteSpec(t *testing.T) {
	s := &script{specs: make(chan nstance.MachineSpec, 1)}
	remote, _ := serve(t, s)
	for _, args := range []string{"", ` {"b" : "<&>",  "a": 1.50}`} {
		spec := newSpec()
		spec.Group, spec.Epoch, spec.Arch, spec.Image, spec.InstanceType, spec.Subnet, spec.MaxPrice = "web", 7, nstance.ARM64, "i", "t", "s", "0.1"
		spec.UserData = []byte("\x00\xff")
		if args != "" {
			spec.Args = json.RawMessage(args)
		}
		_, err := remote.Create(t.Context(), spec)
		require.NoError(t, err)
		require.Equal(t, spec, <-s.specs)
	}
	t.Run("that is too large is not sent", func(t *testing.T) {
		spec := newSpec()
		spec.Args = json.RawMessage(`{"x": "` + strings.Repeat("x", 4<<20) + `"}`)
		_, err := remote.Create(t.Context(), spec)
		require.ErrorIs(t, err, nstance.Invalid)
		spec.Args, spec.UserData = nil, make([]byte, 1<<20+1)
		_, err = remote.Create(t.Context(), spec)
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

// peer answers every connection with the output of say, after a call has arrived.
func peer(t *testing.T, say func(net.Conn)) *local.Remote {
	t.Helper()
	path := socket(t)
	l, err := local.Listen(t.Context(), path)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			say(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return dial(t, path)
}

// lost requires every call to fail without a definite answer.
func lost(t *testing.T, calls map[string]error) {
	t.Helper()
	for op, err := range calls {
		want := nstance.Unavailable
		if op == "create" {
			want = nstance.Ambiguous
		}
		require.Equal(t, want, nstance.CodeOf(err), "%s: %v", op, err)
	}
}

func TestRemoteWithoutAnswer(t *testing.T) {
	t.Run("no listener: no effect", func(t *testing.T) {
		for op, err := range each(t.Context(), dial(t, socket(t))) {
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%s: %v", op, err)
		}
	})
	t.Run("the connection breaks", func(t *testing.T) {
		lost(t, each(t.Context(), peer(t, func(net.Conn) {})))
	})
	for name, body := range map[string]string{
		"an answer that is cut off":           `{"machine": {"id"`,
		"an answer that says nothing":         "{}\n",
		"an answer that is none":              "hello\n",
		"an answer that does not end":         strings.Repeat("x", 1<<21),
		"a listing without its end, and more": `{"machine": {"id": "x"}, `,
	} {
		t.Run(name, func(t *testing.T) {
			lost(t, each(t.Context(), peer(t, func(c net.Conn) {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+body)
			})))
		})
	}
	t.Run("a refusal by something else", func(t *testing.T) {
		lost(t, each(t.Context(), peer(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		})))
	})
	t.Run("a code of another version", func(t *testing.T) {
		calls := each(t.Context(), peer(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+`{"error": {"code": "gone", "msg": "away"}}`)
		}))
		for op, err := range calls {
			require.Equal(t, nstance.Internal, nstance.CodeOf(err), op)
		}
	})
	t.Run("an interrupted listing is incomplete", func(t *testing.T) {
		remote := peer(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+`{"machine": {"id": "x"}}`+"\n")
		})
		seen := 0
		var last error
		for _, err := range remote.List(t.Context(), owner) {
			seen, last = seen+1, err
		}
		require.Equal(t, 2, seen)
		require.ErrorIs(t, last, nstance.Unavailable)
	})
}

func TestRemoteContext(t *testing.T) {
	for _, op := range []string{"create", "get", "list", "delete", "park", "wake"} {
		t.Run("of a "+op+" ends at the cloud too", func(t *testing.T) {
			s := &script{block: make(chan struct{})}
			remote, _ := serve(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			spec := newSpec()
			m := nstance.Machine{ID: spec.ID, Owner: owner}
			var err error
			switch op {
			case "create":
				_, err = remote.Create(ctx, spec)
				require.ErrorIs(t, err, nstance.Ambiguous)
			case "get":
				_, err = remote.Get(ctx, spec.ID)
			case "list":
				for _, err = range remote.List(ctx, owner) {
				}
			case "delete":
				err = remote.Delete(ctx, m)
			case "park":
				err = remote.Park(ctx, m, nstance.ParkHibernated)
			case "wake":
				err = remote.Wake(ctx, m)
			}
			require.Error(t, err)
			select {
			case <-s.block:
			case <-time.After(soon):
				require.Fail(t, "the context of the cloud did not end")
			}
		})
	}
}

func TestServe(t *testing.T) {
	t.Run("ends with its context, and cuts off open calls", func(t *testing.T) {
		s := &script{block: make(chan struct{}), specs: make(chan nstance.MachineSpec, 1)}
		remote, stop := serve(t, s)
		failed := make(chan error, 1)
		go func() {
			_, err := remote.Create(context.Background(), newSpec())
			failed <- err
		}()
		<-s.specs
		stop()
		<-s.block
		require.ErrorIs(t, <-failed, nstance.Ambiguous)
		_, err := remote.Get(t.Context(), newSpec().ID)
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	t.Run("returns after the calls that it has cut off", func(t *testing.T) {
		returned := make(chan struct{})
		early := false
		s := &script{block: make(chan struct{}), specs: make(chan nstance.MachineSpec, 1), after: func() {
			select {
			case <-returned:
				early = true
			case <-time.After(100 * time.Millisecond):
			}
		}}
		remote, stop := serve(t, s)
		go func() { _, _ = remote.Create(context.Background(), newSpec()) }()
		<-s.specs
		stop()
		close(returned)
		<-s.block
		require.False(t, early)
	})
	t.Run("returns the error that ended it", func(t *testing.T) {
		l, err := local.Listen(t.Context(), socket(t))
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.ErrorIs(t, local.Serve(t.Context(), l, &script{}), nstance.Unavailable)
	})
	t.Run("lists many", func(t *testing.T) {
		s := &script{list: make([]nstance.Machine, 5000)}
		for i := range s.list {
			s.list[i] = nstance.Machine{ID: nstance.InstanceID(fmt.Sprint("m", i)), Owner: owner}
		}
		remote, _ := serve(t, s)
		var got []nstance.Machine
		for m, err := range remote.List(t.Context(), owner) {
			require.NoError(t, err)
			got = append(got, m)
		}
		require.Equal(t, s.list, got)
	})
}

func TestListen(t *testing.T) {
	t.Run("for the owner only, and removed at the end", func(t *testing.T) {
		path := socket(t)
		l, err := local.Listen(t.Context(), path)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.ModeSocket|0o600, info.Mode())
		require.NoError(t, l.Close())
		require.NoFileExists(t, path)
	})
	t.Run("over the socket of a killed process", func(t *testing.T) {
		path := socket(t)
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		l, err = local.Listen(t.Context(), path)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	})
	t.Run("not while a process listens", func(t *testing.T) {
		path := socket(t)
		l, err := local.Listen(t.Context(), path)
		require.NoError(t, err)
		defer l.Close()
		_, err = local.Listen(t.Context(), path)
		require.ErrorIs(t, err, nstance.Conflict)
	})
	t.Run("not in place of another file", func(t *testing.T) {
		path := socket(t)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := local.Listen(t.Context(), path)
		require.ErrorIs(t, err, nstance.Invalid)
		require.FileExists(t, path)
	})
	t.Run("not where there cannot be a socket", func(t *testing.T) {
		for _, path := range []string{"", "/" + strings.Repeat("x", 103), "/no/such/folder/s"} {
			_, err := local.Listen(t.Context(), path)
			require.ErrorIs(t, err, nstance.Invalid, path)
		}
		_, err := local.Dial("/" + strings.Repeat("x", 103))
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

// TestRemoteEnd: why a machine is gone passes the socket, also where the error about it was
// wrapped.
func TestRemoteEnd(t *testing.T) {
	is := &nstance.Error{Code: nstance.NotFound, Msg: "it is gone", Cause: nstance.LossReclaimed, Words: "taken back"}
	for _, err := range []error{is, fmt.Errorf("asked twice: %w", is)} {
		r, _ := serve(t, &script{err: err})
		_, got := r.Get(t.Context(), "web06h095944ss1h2crzd2k9gjxkr")
		require.ErrorIs(t, got, nstance.NotFound)
		require.Equal(t, nstance.LossReclaimed, nstance.LossCauseOf(got))
		e, ok := errors.AsType[*nstance.Error](got)
		require.True(t, ok)
		require.Equal(t, "taken back", e.Words)
	}
}
