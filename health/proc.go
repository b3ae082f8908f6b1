package health

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// maxProcBytes is how much of a file under /proc is read: the values needed are
// near the top.
const maxProcBytes = 8 << 10

// A source is where samples come from. The files are described in the Linux
// manual pages proc_stat(5), proc_meminfo(5) and proc_loadavg(5).
type source struct{ proc, disk string }

// read returns the values that could be read, and the errors of the others.
func (s source) read(now time.Time) (sample, error) {
	r := sample{at: now, memory: math.NaN(), disk: math.NaN(), load: math.NaN()}
	var errs [4]error
	errs[0] = s.parseFile("stat", func(b []byte) (err error) { r.cpu, err = parseStat(b); return })
	errs[1] = s.parseFile("meminfo", func(b []byte) (err error) { r.memory, err = parseMeminfo(b); return })
	errs[2] = s.parseFile("loadavg", func(b []byte) (err error) { r.load, err = parseLoadavg(b); return })
	if r.disk, errs[3] = diskUsage(s.disk); errs[3] != nil {
		errs[3] = fmt.Errorf("usage of %s: %w", s.disk, errs[3])
	}
	return r, errors.Join(errs[:]...)
}

func (s source) parseFile(name string, parse func([]byte) error) error {
	f, err := os.Open(filepath.Join(s.proc, name))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxProcBytes))
	if err != nil {
		return err
	}
	if err := parse(b); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return nil
}

// parseStat reads the line of all processors: user, nice, system, idle, iowait,
// irq, softirq, steal. Idle and iowait are idle time. The fields after steal are
// contained in user and nice. Steal counts as busy: the machine could not use it.
func parseStat(b []byte) (ticks, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return ticks{}, errors.New("no line of all processors")
	}
	var t ticks
	for i, field := range fields[1:min(9, len(fields))] {
		n, err := strconv.ParseUint(field, 10, 56) // eight of them cannot overflow
		if err != nil {
			return ticks{}, err
		}
		t.total += n
		if i != 3 && i != 4 {
			t.busy += n
		}
	}
	return t, nil
}

// parseMeminfo returns the share of memory that is not available without
// swapping, in percent.
func parseMeminfo(b []byte) (float64, error) {
	total, available := math.NaN(), math.NaN()
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		switch name {
		case "MemTotal":
			total = kilobytes(rest)
		case "MemAvailable":
			available = kilobytes(rest)
		}
	}
	used := percent(total-available, total)
	if math.IsNaN(used) {
		return used, errors.New("no MemTotal and MemAvailable")
	}
	return used, nil
}

// kilobytes reads a number followed by kB, or returns NaN.
func kilobytes(s string) float64 {
	fields := strings.Fields(s)
	if len(fields) == 0 {
		return math.NaN()
	}
	n, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return math.NaN()
	}
	return float64(n)
}

// parseLoadavg returns the first number, the load over the last minute.
func parseLoadavg(b []byte) (float64, error) {
	first, _, _ := strings.Cut(string(b), " ")
	load, err := strconv.ParseFloat(strings.TrimSpace(first), 64)
	if err != nil || math.IsInf(load, 0) || math.IsNaN(load) || load < 0 {
		return math.NaN(), fmt.Errorf("%.20q is not a load", first)
	}
	return load, nil
}
