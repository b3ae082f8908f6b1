package ec2test

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// shifting is the service for zonal shifts, as credential scopes call it. Its API is
// restJson1, version 2022-10-30.
const shifting = "arc-zonal-shift"

// A ZonalShift is one that the account has started for one of its resources.
type ZonalShift struct {
	ID       string
	Resource string // ARN
	AwayFrom string // ID of a zone
	Comment  string
	Type     string // such as ZONAL_SHIFT or PRACTICE_RUN; empty: AWS leaves it out
	Started  time.Time
	Expires  time.Time
	Status   string // ACTIVE, EXPIRED or CANCELED
}

// An Autoshift is one that AWS has started for a zone.
type Autoshift struct {
	AwayFrom string // ID of a zone
	Started  time.Time
	Ended    time.Time // zero: it goes on
}

// shifts are what the account sees of zonal shifts, guarded by the cloud's lock.
type shifts struct {
	zonal []ZonalShift
	auto  []Autoshift
}

// SetZonalShifts replaces the zonal shifts of the account.
func (c *Cloud) SetZonalShifts(all ...ZonalShift) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shifts.zonal = slices.Clone(all)
}

// SetAutoshifts replaces the autoshifts that AWS shows to the account.
func (c *Cloud) SetAutoshifts(all ...Autoshift) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shifts.auto = slices.Clone(all)
}

// shiftOperations are the operations by path.
var shiftOperations = map[string]struct {
	action     string
	parameters []string
	statuses   []string
	list       func(*shifts, url.Values) []any
}{
	"/zonalshifts": {"ListZonalShifts", []string{"maxResults", "nextToken", "resourceIdentifier", "status"}, []string{"ACTIVE", "EXPIRED", "CANCELED"}, (*shifts).listZonal},
	"/autoshifts":  {"ListAutoshifts", []string{"maxResults", "nextToken", "status"}, []string{"ACTIVE", "COMPLETED"}, (*shifts).listAuto},
}

// serveShifts answers a call of the service for zonal shifts, and reports whether it was
// one.
func (g *gateway) serveShifts(w http.ResponseWriter, r *http.Request) bool {
	op, known := shiftOperations[r.URL.Path]
	if !known || r.Method != http.MethodGet {
		return false
	}
	g.o.Faults.Serve(w, r, op.action, func(w http.ResponseWriter, r *http.Request) {
		err := g.authenticate(shifting, r, nil, time.Now())
		if err == nil && !g.o.permits(shifting+":"+op.action) {
			err = refuse("AccessDeniedException", "User is not authorized to perform: %s:%s", shifting, op.action)
		}
		q := r.URL.Query()
		if err == nil {
			err = checkShiftQuery(q, op.parameters, op.statuses)
		}
		var answer map[string]any
		if err == nil {
			g.mu.Lock()
			all := op.list(g.shifts, q)
			g.mu.Unlock()
			answer, err = shiftPage(all, q)
		}
		if err != nil {
			writeShiftError(w, err)
			return
		}
		writeJSON(w, shifting, http.StatusOK, answer)
	})
	return true
}

func checkShiftQuery(q url.Values, parameters, statuses []string) error {
	for name := range q {
		if !slices.Contains(parameters, name) {
			return refuse("ValidationException", "unknown parameter %s", name)
		}
	}
	if s := q.Get("status"); s != "" && !slices.Contains(statuses, s) {
		return refuse("ValidationException", "status %s", s)
	}
	return nil
}

func epoch(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func (s *shifts) listZonal(q url.Values) (out []any) {
	for _, z := range s.zonal {
		if status := q.Get("status"); status != "" && status != z.Status || q.Get("resourceIdentifier") != "" && q.Get("resourceIdentifier") != z.Resource {
			continue
		}
		item := map[string]any{
			"zonalShiftId": z.ID, "resourceIdentifier": z.Resource, "awayFrom": z.AwayFrom, "comment": z.Comment,
			"startTime": epoch(z.Started), "expiryTime": epoch(z.Expires), "status": z.Status,
		}
		if z.Type != "" {
			item["shiftType"] = z.Type
		}
		out = append(out, item)
	}
	return out
}

func (s *shifts) listAuto(q url.Values) (out []any) {
	for _, a := range s.auto {
		item := map[string]any{"awayFrom": a.AwayFrom, "startTime": epoch(a.Started), "status": "ACTIVE"}
		if !a.Ended.IsZero() {
			item["endTime"], item["status"] = epoch(a.Ended), "COMPLETED"
		}
		if status := q.Get("status"); status == "" || status == item["status"] {
			out = append(out, item)
		}
	}
	return out
}

// shiftPage cuts one page out of all results. A token holds how many came before.
func shiftPage(all []any, q url.Values) (map[string]any, error) {
	from, size := 0, len(all)
	if token := q.Get("nextToken"); token != "" {
		raw, err := base64.StdEncoding.DecodeString(token)
		if err == nil {
			from, err = strconv.Atoi(strings.TrimPrefix(string(raw), "from:"))
		}
		if err != nil || from < 0 || from > len(all) {
			return nil, refuse("ValidationException", "nextToken is invalid")
		}
	}
	if limit := q.Get("maxResults"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > 100 {
			return nil, refuse("ValidationException", "maxResults is not between 1 and 100")
		}
		size = n
	}
	end := min(from+size, len(all))
	answer := map[string]any{"items": append([]any{}, all[from:end]...)}
	if end < len(all) {
		answer["nextToken"] = base64.StdEncoding.EncodeToString([]byte("from:" + itoa(end)))
	}
	return answer, nil
}

// shiftStatuses are those of the model's errors, and of authentication ("Common errors").
var shiftStatuses = map[string]int{
	"AccessDeniedException": http.StatusForbidden, "ThrottlingException": http.StatusTooManyRequests, "InternalServerException": http.StatusInternalServerError,
	"MissingAuthenticationToken": http.StatusForbidden, "InvalidClientTokenId": http.StatusForbidden, "SignatureDoesNotMatch": http.StatusForbidden,
}

// ShiftRefusal answers a call of the service for zonal shifts with an error of that code,
// for testcloud.Fault.
func ShiftRefusal(code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		writeShiftError(w, &apiError{code, message})
	}
}

func writeShiftError(w http.ResponseWriter, err error) {
	refused := refusalOf(err, "InternalServerException")
	status, known := shiftStatuses[refused.code]
	if !known {
		status = http.StatusBadRequest
	}
	body := map[string]any{"message": refused.message}
	if refused.code == "ValidationException" {
		body["reason"] = "InvalidStatus"
	}
	w.Header().Set("X-Amzn-Errortype", refused.code)
	writeJSON(w, shifting, status, body)
}
