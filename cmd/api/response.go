// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	maxBody      = 1 << 20          // bytes of a request
	piece        = 64 << 10         // bytes of a response that a client has to take in one time
	writeTimeout = 30 * time.Second // for a client to take one piece of the response
	readTimeout  = 10 * time.Second // for it to send the body of a request
	longest      = 5 * time.Minute  // for it to take a whole response, if it is not one that goes on
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
	limits  *limits
	control *http.ResponseController
	until   time.Time // all has to be taken, zero for no such time
	wrote   bool
	cut     bool // the client was too slow
}

func newResponse(w http.ResponseWriter, l *limits) *response {
	return &response{ResponseWriter: w, limits: l, control: http.NewResponseController(w)}
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

// Write implements [http.ResponseWriter]. Each piece has its own time.
func (r *response) Write(b []byte) (n int, err error) {
	r.wrote = true
	for {
		r.extend()
		m, err := r.ResponseWriter.Write(b[n:min(n+piece, len(b))])
		if n += m; err != nil {
			r.count(err)
		}
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// Flush implements [http.Flusher].
func (r *response) Flush() {
	r.wrote = true
	r.extend()
	r.count(r.control.Flush()) // the next write fails too
}

func (r *response) extend() {
	deadline := time.Now().Add(r.limits.writeTimeout)
	if !r.until.IsZero() && r.until.Before(deadline) {
		deadline = r.until
	}
	r.control.SetWriteDeadline(deadline) // not supported by recorders
}

// count counts a client that was too slow, once.
func (r *response) count(err error) {
	if !r.cut && errors.Is(err, os.ErrDeadlineExceeded) {
		r.cut = true
		r.limits.refuse(refusedSlow)
	}
}

// isGone reports whether a handler could not go on as its client has left, or was
// cut off.
func isGone(cause any) bool {
	err, _ := cause.(error)
	return errors.As(err, new(*net.OpError))
}

// timedBody is the body of a request that has to be sent in time. Once it is read
// the connection has all the time of the world again, in which it is watched for
// the client's leaving.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.control.SetReadDeadline(time.Time{}) // not supported by recorders
	}
	return n, err
}

// guard keeps other web pages from what is answered, bounds the body of requests,
// and answers a handler that panics, as StateDB's do on what they do not expect,
// with a status of 400.
func guard(log *slog.Logger, l *limits, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp := newResponse(w, l)
		resp.Header().Set("X-Content-Type-Options", "nosniff")           // no data is run as a script
		resp.Header().Set("Cross-Origin-Resource-Policy", "same-origin") // nor embedded by another page
		if r.Body != nil && r.Body != http.NoBody {
			resp.control.SetReadDeadline(time.Now().Add(l.readTimeout)) // not supported by recorders
			r.Body = &timedBody{http.MaxBytesReader(w, r.Body, maxBody), resp.control}
		}
		defer func() {
			cause := recover()
			switch {
			case cause == nil:
			case cause == http.ErrAbortHandler || r.Context().Err() != nil || isGone(cause):
				panic(http.ErrAbortHandler)
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
