// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"

	"github.com/sluice-net/sluice/sources/events"
)

// RulesReport is the answer of /rules.
type RulesReport struct {
	Counted bool                 `json:"counted"` // programs are loaded, so that the counts mean something
	Rules   []events.RuleCounter `json:"rules"`
}

func (h *handlers) rules(w http.ResponseWriter, _ *http.Request) {
	if h.events == nil {
		writeError(w, http.StatusServiceUnavailable, "this agent counts nothing")
		return
	}
	counters, err := h.events.RuleCounters()
	if err != nil {
		writeError(w, http.StatusInternalServerError, "%v", err)
		return
	}
	writeJSON(w, http.StatusOK, RulesReport{Counted: h.events.Reports(), Rules: counters})
}
