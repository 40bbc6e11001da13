// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/tables/explain"
)

// ExplainPolicyPath returns the path that asks what network policies say.
func ExplainPolicyPath(from, to, port string) string {
	return "/explain/policy?" + url.Values{explain.FieldFrom: {from}, explain.FieldTo: {to}, explain.FieldPort: {port}}.Encode()
}

// ExplainEgressPath returns the path that asks by which gateway a packet leaves.
func ExplainEgressPath(from, to string) string {
	return "/explain/egress?" + url.Values{explain.FieldFrom: {from}, explain.FieldTo: {to}}.Encode()
}

func (h *handlers) explainPolicy(w http.ResponseWriter, r *http.Request) {
	q, ok := h.question(w, r, explain.FieldFrom, explain.FieldTo, explain.FieldPort, explain.FieldProtocol)
	if !ok {
		return
	}
	answer, err := h.explain.Policy(q.Get(explain.FieldFrom), q.Get(explain.FieldTo), q.Get(explain.FieldPort), q.Get(explain.FieldProtocol))
	writeAnswer(w, answer, err)
}

func (h *handlers) explainEgress(w http.ResponseWriter, r *http.Request) {
	q, ok := h.question(w, r, explain.FieldFrom, explain.FieldTo)
	if !ok {
		return
	}
	answer, err := h.explain.Egress(q.Get(explain.FieldFrom), q.Get(explain.FieldTo))
	writeAnswer(w, answer, err)
}

// question returns the parameters of a request, or answers it that they are not those that there are.
func (h *handlers) question(w http.ResponseWriter, r *http.Request, known ...string) (url.Values, bool) {
	if h.explain == nil {
		writeError(w, http.StatusServiceUnavailable, "this agent has nothing to explain")
		return nil, false
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeError(w, http.StatusBadRequest, "parse the query: %v", err)
		return nil, false
	}
	for name, values := range q {
		switch {
		case !slices.Contains(known, name):
			writeField(w, name, "unknown parameter, want "+strings.Join(known, ", "))
			return nil, false
		case len(values) > 1:
			writeField(w, name, "is given more than once")
			return nil, false
		}
	}
	return q, true
}

func writeField(w http.ResponseWriter, field, reason string) {
	writeJSON(w, http.StatusBadRequest, errorBody{Err: field + ": " + reason, Field: field})
}

func writeAnswer(w http.ResponseWriter, answer any, err error) {
	var wrong explain.Error
	switch {
	case errors.As(err, &wrong):
		writeField(w, wrong.Field, wrong.Reason)
	case errors.Is(err, explain.ErrNotReady):
		writeError(w, http.StatusServiceUnavailable, "%v", err)
	case err != nil:
		writeError(w, http.StatusInternalServerError, "%v", err)
	default:
		writeCompact(w, answer)
	}
}
