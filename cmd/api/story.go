// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"

	"github.com/sluice-net/sluice/tables/story"
)

// getStory serves the story of the policy that the parameter policy names.
func (h *handlers) getStory(w http.ResponseWriter, r *http.Request) {
	if h.story == nil {
		writeError(w, http.StatusServiceUnavailable, "this agent has no policies")
		return
	}
	built, err := h.story.Build(r.URL.Query().Get("policy"))
	var cannot story.Error
	switch {
	case errors.As(err, &cannot) && cannot.Absent:
		writeError(w, http.StatusNotFound, "%v", err)
	case err != nil:
		writeField(w, "policy", err.Error())
	default:
		writeCompact(w, built)
	}
}
