// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/cilium/stream"

	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
)

// Parameters of /monitor, each of which may be repeated.
const (
	monitorKind   = "kind"
	monitorReason = "reason"
	monitorPod    = "pod"
)

// MonitorQuery returns the query of /monitor for the events that are asked for.
func MonitorQuery(kinds, reasons, pods []string) string {
	return url.Values{monitorKind: kinds, monitorReason: reasons, monitorPod: pods}.Encode()
}

func parseMonitorQuery(query string) (events.Filter, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return events.Filter{}, fmt.Errorf("parse the query: %w", err)
	}
	for name := range values {
		if name != monitorKind && name != monitorReason && name != monitorPod {
			return events.Filter{}, fmt.Errorf("unknown parameter %q: want %s, %s or %s", name, monitorKind, monitorReason, monitorPod)
		}
	}
	return events.ParseFilter(values[monitorKind], values[monitorReason], values[monitorPod])
}

// monitorBuffer is how many events are sent to a client without a pause.
const monitorBuffer = 64

// monitor streams drops and new flows, a JSON object a line, and an empty one
// when there was nothing for a while.
func (h *handlers) monitor(w http.ResponseWriter, r *http.Request) {
	filter, err := parseMonitorQuery(r.URL.RawQuery)
	if err != nil {
		writeError(w, http.StatusBadRequest, "%v", err)
		return
	}
	if h.events == nil {
		writeError(w, http.StatusServiceUnavailable, "this agent has no events")
		return
	}
	release, ok := h.limits.admit(w, r, h.limits.streams)
	if !ok {
		return
	}
	defer release()

	ctx, cancel := context.WithCancel(r.Context())
	followed := stream.ToChannel(ctx, h.events.Follow(filter), stream.WithBufferSize(monitorBuffer))
	defer func() { // the follower is gone when the request ends
		cancel()
		for range followed {
		}
	}()

	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	if !h.events.Reports() {
		enc.Encode(&tables.Event{ // an error shows at the next write
			Kind: tables.EventNotice, Time: time.Now().UTC(),
			Message: "no programs are loaded on " + h.node.Name + ": there are no events",
		})
	}
	control := http.NewResponseController(w)
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	for {
		if len(followed) == 0 {
			control.Flush()
		}
		var line any = struct{}{}
		select {
		case e, ok := <-followed:
			if !ok {
				return
			}
			line = e
		case <-ticker.C:
		}
		if err := enc.Encode(line); err != nil {
			h.log.Debug("Client stops following events", "error", err)
			return
		}
	}
}
