package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/command"
	"github.com/nstance-go/nstance/internal/validate"
)

const (
	maxProbes       = 32
	maxProbesAtOnce = 8
	maxProbeName    = 64
	maxMessage      = 256 // bytes
	maxTimeout      = time.Minute
	defaultTimeout  = 5 * time.Second
	maxPause        = time.Hour
	minPause        = time.Second
	defaultPause    = 15 * time.Second
)

// A Probe is one question about the machine. Exactly one of Command, HTTP and
// TCP is set.
type Probe struct {
	Name     string        // at most 64 bytes, unique
	Command  []string      // passes with exit status zero; run without a shell; killed with its process group at the timeout
	HTTP     string        // URL; passes if GET answers with a status from 200 to 399; redirects are not followed, proxies not used
	TCP      string        // host:port; passes if it accepts a connection
	Interval time.Duration // from one start to the next, from a second to an hour; zero means 15 seconds
	Timeout  time.Duration // at most a minute; zero means five seconds
}

// A probeState is a probe with its last result.
type probeState struct {
	Probe
	hasResult chan struct{} // closed with the first result

	mu         sync.Mutex
	lastResult nstance.ProbeResult
}

// Probes returns the last result of every probe, in the order of
// CollectorOptions.Probes. Run executes the probes, so a slow probe does not
// delay Probes, except before its first result: Probes waits for that until ctx
// ends, and reports a probe without result as failed. The message of a failed
// probe says why, in at most 256 bytes.
func (c *Collector) Probes(ctx context.Context) []nstance.ProbeResult {
	results := make([]nstance.ProbeResult, 0, len(c.probes))
	for _, p := range c.probes {
		select {
		case <-p.hasResult:
		case <-ctx.Done():
		}
		p.mu.Lock()
		results = append(results, p.lastResult)
		p.mu.Unlock()
	}
	return results
}

// repeatProbe runs one probe at its interval until ctx ends. The capacity of
// slots bounds how many probes run at the same time.
func (c *Collector) repeatProbe(ctx context.Context, p *probeState, slots chan struct{}) {
	tick := time.NewTicker(p.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		r, ran := c.runProbe(ctx, p.Probe)
		<-slots
		if ctx.Err() != nil {
			return // cancelled: the result says nothing about the machine
		}
		p.setResult(r, ran)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// setResult notes what a probe has shown. A probe that did not run shows nothing: what an
// earlier one showed stays.
func (p *probeState) setResult(r nstance.ProbeResult, ran bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.hasResult:
		if !ran {
			return
		}
	default:
		close(p.hasResult)
	}
	p.lastResult = r
}

// runProbe runs a probe once. ran is false for a program that could not be started because
// the machine is short of something.
func (c *Collector) runProbe(ctx context.Context, p Probe) (r nstance.ProbeResult, ran bool) {
	bounded, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	var err error
	switch {
	case len(p.Command) > 0:
		err = command.Command{Argv: p.Command, MaxOutput: maxMessage / 2}.Run(bounded)
	case p.HTTP != "":
		err = c.get(bounded, p.HTTP)
	default:
		err = dial(bounded, p.TCP)
	}
	if err == nil {
		return nstance.ProbeResult{Name: p.Name, OK: true}, true
	}
	unstarted, _ := errors.AsType[*command.NotStarted](err)
	if bounded.Err() != nil && unstarted == nil {
		err = fmt.Errorf("no answer within %v", p.Timeout)
	}
	return nstance.ProbeResult{Name: p.Name, Message: command.End(err.Error(), maxMessage)}, unstarted == nil || bounded.Err() == nil
}

func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// probeClient opens a new connection for each request, as a user would, and
// follows no redirect to another host.
func probeClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

func (c *Collector) get(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 200 && resp.StatusCode < 400 {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessage/2)) // after an error, the part that was read is enough
	return fmt.Errorf("%s: %s", resp.Status, body)
}

// checkProbes returns the probes with their defaults filled in.
func checkProbes(probes []Probe) ([]*probeState, error) {
	if len(probes) > maxProbes {
		return nil, nstance.FieldError("probes", "use at most 32", "%d are too many", len(probes))
	}
	names := map[string]bool{}
	all := make([]*probeState, 0, len(probes))
	for i, p := range probes {
		field := fmt.Sprintf("probes[%d]", i)
		p.Timeout, p.Interval = cmp.Or(p.Timeout, defaultTimeout), cmp.Or(p.Interval, defaultPause)
		if err := p.check(field); err != nil {
			return nil, err
		}
		if names[p.Name] {
			return nil, nstance.FieldError(field+".name", "give each probe its own name", "%q is used twice", p.Name)
		}
		names[p.Name] = true
		p.Command = slices.Clone(p.Command)
		noResult := nstance.ProbeResult{Name: p.Name, Message: "no result yet"}
		all = append(all, &probeState{Probe: p, hasResult: make(chan struct{}), lastResult: noResult})
	}
	return all, nil
}

func (p Probe) check(field string) error {
	kinds := 0
	for _, set := range []bool{len(p.Command) > 0, p.HTTP != "", p.TCP != ""} {
		if set {
			kinds++
		}
	}
	if err := errors.Join(
		validate.Setting(field+".timeout", p.Timeout, maxTimeout),
		validate.Duration(field+".interval", p.Interval, minPause, maxPause),
	); err != nil {
		return err
	}
	switch {
	case p.Name == "" || len(p.Name) > maxProbeName:
		return nstance.FieldError(field+".name", "use 1 to 64 bytes", "has %d bytes", len(p.Name))
	case kinds != 1:
		return nstance.FieldError(field, "set exactly one of command, http and tcp", "%d are set", kinds)
	case len(p.Command) > 0 && p.Command[0] == "":
		return nstance.FieldError(field+".command", "name a program", "is empty")
	case p.TCP != "":
		return checkAddress(field, p.TCP)
	case p.HTTP != "":
		return checkURL(field, p.HTTP)
	}
	return nil
}

func checkAddress(field, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return nstance.FieldError(field+".tcp", "use host:port", "%q is not an address", address)
	}
	return nil
}

func checkURL(field, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nstance.FieldError(field+".http", "use a URL such as http://127.0.0.1:8080/healthz", "%q is not a URL", address)
	}
	return nil
}
