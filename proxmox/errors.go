package proxmox

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/nstance-go/nstance"
)

// A rule gives a code to a refusal. Proxmox VE has no error codes: below status
// 500 the status decides, at 500 and in the exit status of a task the text does.
type rule struct {
	status  int    // 0: any, and the exit status of a task
	text    string // it contains; empty: any
	code    nstance.Code
	meaning string
}

// rules are in order: the first that fits decides.
var rules = []rule{
	{http.StatusUnauthorized, "", nstance.Denied, "wrong, expired or disabled token"},
	{http.StatusForbidden, "", nstance.Denied, "the token lacks a privilege; the text names path and privilege"},
	{0, "Permission check failed", nstance.Denied, "the same, found by a task"},
	{http.StatusTooManyRequests, "", nstance.Throttled, "a proxy before the API slows callers down"},
	{0, "can't lock file", nstance.Throttled, "another task holds the lock of the machine or storage"},
	{0, "got lock request timeout", nstance.Throttled, "another task holds the lock of the cluster or storage"},
	{0, "got lock timeout", nstance.Throttled, "the same"},
	{0, "got timeout", nstance.Throttled, "the same, or storage that is slow"},
	{0, "no quorum", nstance.Unavailable, "the cluster is read-only until enough nodes are back"},
	{0, "VM is locked", nstance.Unavailable, "another task works on the machine; if none does, an operator has to unlock it with qm unlock"},
	{0, "config file already exists", nstance.Conflict, "the VMID is taken on this node"},
	{0, "File exists", nstance.Conflict, "the VMID is taken on another node"},
	{0, "already exists", nstance.Conflict, "the VMID is taken"},
	{0, "file changed by other user", nstance.Conflict, "the configuration changed meanwhile"},
	{0, "HA resources", nstance.Conflict, "the machine is under high availability"},
	{0, "HA managed", nstance.Conflict, "the same"},
	{0, "still in use by linked clone", nstance.Conflict, "a template that machines share their disk with"},
	{0, "is running - destroy failed", nstance.Unavailable, "the machine was started meanwhile; it is stopped and removed at the next try"},
	{0, "protection mode enabled", nstance.Denied, "an operator protects the machine: end that with qm set and --protection 0"},
	{0, "vcpus allowed per VM", nstance.Invalid, "the node has fewer processors than the machine is to have"},
	{0, "is bigger than the bridge MTU", nstance.Invalid, "args.mtu, or the mtu of a network, is more than the bridge has"},
	{0, "could not find a free device", nstance.Capacity, "other machines have the PCI devices of the mapping on this node"},
	{0, "already in use by VMID", nstance.Capacity, "another machine has the PCI device"},
	{0, "PCI device mapping not found", nstance.Invalid, "the mapping has no device on this node"},
	{0, "balloon value too large", nstance.Invalid, "the template's least memory is more than the machine is to have"},
	{0, "only root can", nstance.Denied, "an option that no token may change"},
	{0, "out of space", nstance.Capacity, "the storage is full"},
	{0, "No space left", nstance.Capacity, "the storage is full"},
	{0, "not enough free space", nstance.Capacity, "the storage is full"},
	{0, "Disk quota exceeded", nstance.Quota, "the storage has a quota"},
	{0, "annot allocate memory", nstance.Capacity, "the node has no memory for the machine"},
	{0, "is not online", nstance.Capacity, "the chosen node left the cluster"},
	{0, "uses local storage", nstance.Invalid, "args.any_node with a template that has a drive on local storage"},
	{0, "not allowed for linked clones", nstance.Invalid, "args.storage without args.full"},
	{0, "does not support", nstance.Invalid, "the storage does not take this kind of content"},
	{0, "storage '", nstance.Invalid, "the storage does not exist, or cannot be used there; the text says why"},
	{0, "' does not exist", nstance.Unavailable, "the machine moved or went away meanwhile, or a volume is missing"},
	{0, "unable to find configuration file", nstance.Unavailable, "the template moved meanwhile"},
	{http.StatusBadRequest, "", nstance.Invalid, "a parameter is wrong; the text names it"},
	{http.StatusNotImplemented, "", nstance.Invalid, "this version of Proxmox VE does not have the call"},
	{http.StatusNotFound, "", nstance.Unavailable, "not the API of Proxmox VE, or a proxy without a node behind it"},
}

// classify gives an error of the API a code.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*nstance.Error](err); ok {
		return err
	}
	if e, ok := errors.AsType[*apiError](err); ok {
		return nstance.Errorf(e.code(), "%w", e)
	}
	if unsent(err) {
		return nstance.Errorf(nstance.Unavailable, "no node takes the connection: %w", err)
	}
	return nstance.Errorf(nstance.Unavailable, "%s: %w", unanswered(err), err)
}

// unanswered says in which way a call got no answer.
func unanswered(err error) string {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return "no answer"
	}
	return "the answer was lost"
}

func (e *apiError) code() nstance.Code {
	if e.status > http.StatusNotImplemented { // from a proxy, that of another node included
		if e.method == http.MethodGet {
			return nstance.Unavailable
		}
		return nstance.Ambiguous
	}
	return codeOf(e.status, e.Error(), e.method == http.MethodGet)
}

// codeOf returns the code of a refusal. One in words that no rule knows says nothing to a
// read; anything else was refused before it began, or its task has failed for good.
func codeOf(status int, text string, read bool) nstance.Code {
	for _, r := range rules {
		if (r.status == 0 || r.status == status) && strings.Contains(text, r.text) {
			return r.code
		}
	}
	wordless := text == http.StatusText(status) || text == "status "+itoa(status)
	elsewhere := status != 0 && status < http.StatusBadRequest // sent there
	switch {
	case read && (status >= http.StatusInternalServerError || elsewhere || status == http.StatusRequestTimeout):
		return nstance.Unavailable
	case status >= http.StatusInternalServerError && wordless, elsewhere, status == http.StatusRequestTimeout:
		return nstance.Ambiguous
	}
	return nstance.Invalid
}

// sent makes the error of a call that changes something Ambiguous where it may
// have been carried out.
func sent(err error) error {
	if err == nil {
		return nil
	}
	if _, answered := errors.AsType[*apiError](err); answered || unsent(err) {
		return classify(err)
	}
	return nstance.Errorf(nstance.Ambiguous, "%s: %w", unanswered(err), err)
}

// taskError is what the exit status of a failed task means.
func taskError(kind, exit string) error {
	return nstance.Errorf(codeOf(0, exit, false), "task %s: %s", kind, exit)
}

// causeOf says why a machine whose clone failed does not exist.
func causeOf(err error) nstance.LossCause {
	switch nstance.CodeOf(err) {
	case nstance.Capacity:
		return nstance.LossCapacity
	case nstance.Quota:
		return nstance.LossQuota
	case nstance.Throttled:
		return nstance.LossThrottled
	case nstance.Unavailable:
		return nstance.LossHost
	case nstance.Invalid, nstance.Denied, nstance.Internal:
		return nstance.LossInvalid
	}
	return ""
}
