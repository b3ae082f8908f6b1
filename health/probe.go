package health

import (
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
)

const (
	maxProbes       = 32
	maxProbesAtOnce = 8
	maxProbeName    = 64
	maxMessage      = 256 // bytes
	maxTimeout      = time.Minute
	defaultTimeout  = 5 * time.Second
)

// A Probe is one question about the machine. Exactly one of Command, HTTP and
// TCP is set.
type Probe struct {
	Name    string        // at most 64 bytes, unique
	Command []string      // good if it exits with status zero; run without a shell, and killed with all it started when its time is up
	HTTP    string        // URL; good if GET answers with a status from 200 to 399, redirects not followed, proxies not used
	TCP     string        // host:port; good if it accepts a connection
	Timeout time.Duration // at most a minute; zero means five seconds
}

// Probe runs every probe, some at the same time, and returns their results in
// the order of CollectorOptions.Probes. It takes no longer than their timeouts
// require, and what has not answered when ctx ends is not good. The message of
// a probe that is not good says why, in at most 256 bytes.
func (c *Collector) Probe(ctx context.Context) []nstance.ProbeResult {
	results := make([]nstance.ProbeResult, len(c.probes))
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxProbesAtOnce)
	for i, p := range c.probes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = c.probe(ctx, p)
		})
	}
	wg.Wait()
	return results
}

func (c *Collector) probe(ctx context.Context, p Probe) nstance.ProbeResult {
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
		return nstance.ProbeResult{Name: p.Name, OK: true}
	}
	switch {
	case ctx.Err() != nil:
		err = errors.New("called off")
	case bounded.Err() != nil:
		err = fmt.Errorf("no answer within %v", p.Timeout)
	}
	return nstance.ProbeResult{Name: p.Name, Message: command.End(err.Error(), maxMessage)}
}

func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// probeClient asks anew each time, as a user would, and only who was named.
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
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessage/2)) // of interest only as far as it came
	return fmt.Errorf("%s: %s", resp.Status, body)
}

// checkProbes returns the probes with their defaults filled in.
func checkProbes(probes []Probe) ([]Probe, error) {
	if len(probes) > maxProbes {
		return nil, nstance.FieldError("probes", "use at most 32", "%d are too many", len(probes))
	}
	names := map[string]bool{}
	all := make([]Probe, 0, len(probes))
	for i, p := range probes {
		field := fmt.Sprintf("probes[%d]", i)
		if p.Timeout == 0 {
			p.Timeout = defaultTimeout
		}
		if err := p.check(field); err != nil {
			return nil, err
		}
		if names[p.Name] {
			return nil, nstance.FieldError(field+".name", "give each probe its own", "%q is taken", p.Name)
		}
		names[p.Name] = true
		p.Command = slices.Clone(p.Command)
		all = append(all, p)
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
	switch {
	case p.Name == "" || len(p.Name) > maxProbeName:
		return nstance.FieldError(field+".name", "use 1 to 64 bytes", "has %d bytes", len(p.Name))
	case p.Timeout < 0 || p.Timeout > maxTimeout:
		return nstance.FieldError(field+".timeout", "use at most 1m", "%v is out of bounds", p.Timeout)
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
		return nstance.FieldError(field+".http", "use a URL such as http://127.0.0.1:8080/healthz", "%q is not one", address)
	}
	return nil
}
