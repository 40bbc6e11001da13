// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/reconcilers/ctgc"
)

// GCRequest is the body of POST /gc: what to remove of the connections that this
// node knows, and their translations. At least one of the fields that choose
// something has to; Match stands alone.
type GCRequest struct {
	Reason string `json:"reason,omitempty"` // for the table ct-gc-runs

	Expired bool     `json:"expired,omitempty"` // connections that have expired
	Orphans bool     `json:"orphans,omitempty"` // translations without connection
	Addrs   []string `json:"addrs,omitempty"`   // what has one of these addresses, expired or not
	All     bool     `json:"all,omitempty"`     // everything

	// ReplyGraceSeconds is for how long UDP connections that pods began stay after
	// they have expired, for late replies. By default it is as in passes of the agent's own.
	ReplyGraceSeconds *uint32 `json:"replyGraceSeconds,omitempty"`

	// Match chooses connections that are removed also while they are in use.
	Match *CTMatch `json:"match,omitempty"`

	// BPFFS, if not empty, is the BPF file system whose maps are meant, as an absolute
	// path. An agent that has pinned its maps elsewhere refuses the request.
	BPFFS string `json:"bpffs,omitempty"`
}

// GCAnswer is the answer to POST /gc.
type GCAnswer struct {
	Err    string    `json:"err,omitempty"` // if not all could be done
	Passes []gc.Pass `json:"passes"`
}

// Limits of a request.
const (
	maxAddrs             = 4096 // as in passes of the agent
	maxReplyGraceSeconds = 24 * 60 * 60
)

// Collector makes passes through the maps of connections, as [*ctgc.Runner] does.
type Collector interface {
	Run(ctx context.Context, f gc.Filter, reason string) ([]gc.Pass, error)
	Flush(ctx context.Context, chosen func(gc.Entry) bool, reason string) ([]gc.Pass, error)
}

// filter returns what the request asks for. An error names the field.
func (r *GCRequest) filter() (f gc.Filter, err error) {
	f = gc.Filter{Expired: r.Expired, Orphans: r.Orphans, All: r.All, ReplyGrace: ctgc.ReplyGrace}
	if r.ReplyGraceSeconds != nil {
		if *r.ReplyGraceSeconds > maxReplyGraceSeconds {
			return gc.Filter{}, fmt.Errorf("replyGraceSeconds: %d are more than %d, a day", *r.ReplyGraceSeconds, maxReplyGraceSeconds)
		}
		f.ReplyGrace = time.Duration(*r.ReplyGraceSeconds) * time.Second
	}
	for i, text := range r.Addrs {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return gc.Filter{}, fmt.Errorf("addrs[%d]: %q is not an IP address", i, text)
		}
		f.Addrs = append(f.Addrs, addr.Unmap())
	}
	if len(r.Addrs) > maxAddrs {
		return gc.Filter{}, fmt.Errorf("addrs: %d are more than %d", len(r.Addrs), maxAddrs)
	}
	if err := ctgc.CheckReason(r.Reason); err != nil {
		return gc.Filter{}, fmt.Errorf("reason: %w", err)
	}
	chooses := r.Expired || r.Orphans || r.All || len(r.Addrs) > 0
	switch {
	case r.Match != nil && r.Match.Empty():
		return gc.Filter{}, errors.New("match: is empty: all is what removes everything")
	case r.Match != nil && chooses:
		return gc.Filter{}, errors.New("match: stands alone, without expired, orphans, addrs and all")
	case r.Match == nil && !chooses:
		return gc.Filter{}, errors.New("nothing to remove: want one of expired, orphans, addrs, all, match")
	}
	return f, nil
}

// Do makes the pass that is asked for. It is a [*RequestError] if that is not clear.
func (r *GCRequest) Do(ctx context.Context, c Collector) ([]gc.Pass, error) {
	filter, err := r.filter()
	if err != nil {
		return nil, &RequestError{err}
	}
	if r.Match == nil {
		return c.Run(ctx, filter, r.Reason)
	}
	match, err := r.Match.Parse()
	if err != nil {
		return nil, &RequestError{fmt.Errorf("match.%w", err)}
	}
	now, err := gc.Now()
	if err != nil {
		return nil, err
	}
	return c.Flush(ctx, func(e gc.Entry) bool { return match.Connection(e.Tuple, e.CT, now) }, r.Reason)
}

// RequestError is an error that the client has made. It names the field.
type RequestError struct{ error }

func (e *RequestError) Unwrap() error { return e.error }

// parseGCRequest decodes a request strictly: a field that is not understood must
// not have more removed than was meant.
func parseGCRequest(body []byte) (*GCRequest, error) {
	r := &GCRequest{}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(r)
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return nil, fmt.Errorf("%s: want %s, got %s", wrongType.Field, wrongType.Type, wrongType.Value)
	case err != nil:
		return nil, fmt.Errorf("parse the request: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse the request: there is more than one JSON value")
	}
	return r, nil
}

// gc makes a pass through the maps of connections, and answers when it is done.
func (h *handlers) gc(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		h.limits.bodyError(w, err)
		return
	}
	request, err := parseGCRequest(body)
	if err != nil {
		writeError(w, http.StatusBadRequest, "%v", err)
		return
	}
	if h.collector == nil {
		writeError(w, http.StatusServiceUnavailable, "this agent has no kernel maps")
		return
	}
	if err := h.checkBPFFS(request.BPFFS); err != nil {
		writeError(w, http.StatusConflict, "bpffs: %v", err)
		return
	}
	passes, err := request.Do(r.Context(), h.collector)
	var wrong *RequestError
	switch {
	case errors.As(err, &wrong):
		writeError(w, http.StatusBadRequest, "%v", err)
	case errors.Is(err, ctgc.ErrNoMaps):
		writeError(w, http.StatusServiceUnavailable, "this agent has no kernel maps: %v", err)
	case errors.Is(err, ctgc.ErrStopped):
		writeError(w, http.StatusServiceUnavailable, "the agent is stopping: %v", err)
	case err != nil:
		writeJSON(w, http.StatusInternalServerError, GCAnswer{Err: fmt.Sprintf("collect connections: %v", err), Passes: passes})
	default:
		writeJSON(w, http.StatusOK, GCAnswer{Passes: passes})
	}
}

// checkBPFFS returns an error if the maps that a request means are not the agent's.
func (h *handlers) checkBPFFS(bpffs string) error {
	if bpffs == "" || h.mapsDir == nil {
		return nil
	}
	if own := h.mapsDir(); own != "" && own != bpf.MapsDir(bpffs) {
		return fmt.Errorf("the maps of this agent are in %s, not in %s", own, bpf.MapsDir(bpffs))
	}
	return nil
}

// gcElsewhere answers those who are not the owner of the socket.
func (h *handlers) gcElsewhere(w http.ResponseWriter, _ *http.Request) {
	h.limits.refuse(refusedWrite)
	writeError(w, http.StatusForbidden, "connections are removed for the owner of the agent's UNIX socket only: use that instead of TCP")
}
