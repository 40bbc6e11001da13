// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"

	"github.com/sluice-net/sluice/tables/trace"
)

// getTrace serves the trace of the policy that the parameter policy names.
func (h *handlers) getTrace(w http.ResponseWriter, r *http.Request) {
	if h.trace == nil {
		writeError(w, http.StatusServiceUnavailable, "this agent has no policies")
		return
	}
	built, err := h.trace.Build(r.URL.Query().Get("policy"))
	var cannot trace.Error
	switch {
	case errors.As(err, &cannot) && cannot.Absent:
		writeError(w, http.StatusNotFound, "%v", err)
	case err != nil:
		writeField(w, "policy", err.Error())
	default:
		writeCompact(w, built)
	}
}
