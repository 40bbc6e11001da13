// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

const (
	maxBody      = 1 << 20          // of a request
	writeTimeout = 30 * time.Second // for a client to take one piece of the response
)

// errorBody is the JSON of an error. "err" is where StateDB's client looks.
type errorBody struct {
	Err     string   `json:"err"`
	Field   string   `json:"field,omitempty"`   // of the request, that is wrong
	Tables  []string `json:"tables,omitempty"`  // that exist, if the named one does not
	Indexes []string `json:"indexes,omitempty"` // that exist, if the named one does not
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	writeMarshalled(w, status, data, err)
}

// writeCompact is writeJSON for what programs ask for often: to indent it takes
// more time than all else about JSON.
func writeCompact(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	writeMarshalled(w, http.StatusOK, data, err)
}

func writeMarshalled(w http.ResponseWriter, status int, data []byte, err error) {
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"err": "marshal the response"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(data, '\n'))
}

func writeError(w http.ResponseWriter, status int, format string, args ...any) {
	writeJSON(w, status, errorBody{Err: fmt.Sprintf(format, args...)})
}

// response holds a status of 200 back until something is written, so that a
// handler that panics before can still be answered with an error, and bounds how
// long a client may take.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	wrote   bool
}

func newResponse(w http.ResponseWriter) *response {
	return &response{ResponseWriter: w, control: http.NewResponseController(w)}
}

// Unwrap is for [http.ResponseController].
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (r *response) WriteHeader(status int) {
	if status != http.StatusOK {
		r.wrote = true
		r.ResponseWriter.WriteHeader(status)
	}
}

// Write implements [http.ResponseWriter].
func (r *response) Write(b []byte) (int, error) {
	r.wrote = true
	r.extend()
	return r.ResponseWriter.Write(b)
}

// Flush implements [http.Flusher].
func (r *response) Flush() {
	r.wrote = true
	r.extend()
	r.control.Flush() // fails when the client is gone, which ends the request anyway
}

func (r *response) extend() {
	r.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not supported by recorders
}

// guard bounds the body of requests and answers a handler that panics, as
// StateDB's do on what they do not expect, with a status of 400.
func guard(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		resp := newResponse(w)
		defer func() {
			cause := recover()
			switch {
			case cause == nil:
			case cause == http.ErrAbortHandler || r.Context().Err() != nil:
				panic(http.ErrAbortHandler) // the client is gone
			case resp.wrote:
				log.Warn("Response of the API was cut short", "path", r.URL.Path, "error", cause)
				panic(http.ErrAbortHandler)
			default:
				log.Warn("Request to the API cannot be answered", "path", r.URL.Path, "error", cause)
				writeError(w, http.StatusBadRequest, "the request cannot be answered: %v", cause)
			}
		}()
		next.ServeHTTP(resp, r)
	})
}

// bodyStatus returns the status for a body that could not be read.
func bodyStatus(err error) int {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}
