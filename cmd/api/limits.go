// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits of what the clients of one listener can have the agent hold and do at a time. Probes
// are not limited but by the connections of their listener.
const (
	maxDumps     = 8  // whole tables
	maxQuestions = 16 // what is looked up, computed, or explained
	maxScrapes   = 4  // of the metrics
	maxStreams   = 64 // that follow the changes of a table, or events

	// admission is for how long a request waits for others to end, so that who asks
	// for a few things at once gets them.
	admission = time.Second
)

// Reasons that requests are refused or cut short for, in the metrics.
const (
	refusedHost  = "host"  // the name of another host: DNS rebinding
	refusedBody  = "body"  // too large, or not sent in time
	refusedSlow  = "slow"  // the response was not taken in time
	refusedWrite = "write" // what only the owner of the socket may do
)

// limits are the limits of a listener, and count what they refuse.
type limits struct {
	dumps, questions, scrapes, streams *limit

	writeTimeout time.Duration // for a client to take one piece of the response
	readTimeout  time.Duration // for it to send the body
	longest      time.Duration // for it to take a whole dump or answer
	startWait    time.Duration // for the agent to start, while a request waits

	refused *prometheus.CounterVec // by reason
}

// limit bounds how many requests of a kind are answered at a time.
type limit struct {
	kind  string
	slots chan struct{} // holds a token for each
	wait  time.Duration // for a slot
}

func newLimits() *limits {
	newLimit := func(kind string, most int, wait time.Duration) *limit {
		return &limit{kind, make(chan struct{}, most), wait}
	}
	l := &limits{
		dumps:        newLimit("dumps", maxDumps, admission),
		questions:    newLimit("questions", maxQuestions, admission),
		scrapes:      newLimit("scrapes", maxScrapes, admission),
		streams:      newLimit("streams", maxStreams, 0),
		writeTimeout: writeTimeout,
		readTimeout:  readTimeout,
		longest:      longest,
		startWait:    startWait,
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_api_refused_total",
			Help: "Requests that the API refused or cut short, by what they were too many of or did wrong.",
		}, []string{"reason"}),
	}
	for _, limit := range l.kinds() {
		l.refused.WithLabelValues(limit.kind)
	}
	for _, reason := range []string{refusedHost, refusedBody, refusedSlow, refusedWrite} {
		l.refused.WithLabelValues(reason) // 0 from the start on, so that its rate is known
	}
	return l
}

var requestsDesc = prometheus.NewDesc("sluice_api_requests", "Requests that the API is answering, of kinds that are limited.", []string{"kind"}, nil)

func (l *limits) kinds() []*limit { return []*limit{l.dumps, l.questions, l.scrapes, l.streams} }

// Describe implements [prometheus.Collector].
func (l *limits) Describe(to chan<- *prometheus.Desc) {
	to <- requestsDesc
	l.refused.Describe(to)
}

// Collect implements [prometheus.Collector].
func (l *limits) Collect(to chan<- prometheus.Metric) {
	for _, limit := range l.kinds() {
		to <- prometheus.MustNewConstMetric(requestsDesc, prometheus.GaugeValue, float64(len(limit.slots)), limit.kind)
	}
	l.refused.Collect(to)
}

func (l *limits) refuse(reason string) { l.refused.WithLabelValues(reason).Inc() }

// acquire waits for a slot, and reports whether it got one.
func (l *limit) acquire(ctx context.Context) (ok bool) {
	select {
	case l.slots <- struct{}{}:
		return true
	default:
	}
	if l.wait == 0 {
		return false
	}
	timer := time.NewTimer(l.wait)
	defer timer.Stop()
	select {
	case l.slots <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (l *limit) release() { <-l.slots }

// admit returns the slot of a request, or answers it that there are too many.
func (l *limits) admit(w http.ResponseWriter, r *http.Request, of *limit) (release func(), ok bool) {
	if of.acquire(r.Context()) {
		return of.release, true
	}
	l.refuse(of.kind)
	w.Header().Set("Retry-After", "1")
	writeError(w, http.StatusServiceUnavailable, "%d requests are being answered already, as many %s as there may be: try again", cap(of.slots), of.kind)
	return nil, false
}

// bound limits how many requests of a kind a handler answers at a time, and for
// how long a client can keep it at that.
func (l *limits) bound(of *limit, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release, ok := l.admit(w, r, of)
		if !ok {
			return
		}
		defer release()
		l.boundTime(w)
		next.ServeHTTP(w, r)
	})
}

// boundTime bounds for how long from now a client can take to read an answer.
func (l *limits) boundTime(w http.ResponseWriter) {
	if resp, ok := w.(*response); ok {
		resp.until = time.Now().Add(l.longest)
	}
}

// bodyError answers a request whose body cannot be read.
func (l *limits) bodyError(w http.ResponseWriter, err error) {
	l.refuse(refusedBody)
	status, hint := http.StatusBadRequest, ""
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		status, hint = http.StatusRequestEntityTooLarge, fmt.Sprintf(": at most %d bytes", maxBody)
	case errors.Is(err, os.ErrDeadlineExceeded):
		status, hint = http.StatusRequestTimeout, fmt.Sprintf(": it was not sent within %s", l.readTimeout)
	}
	writeError(w, status, "read the request: %v%s", err, hint)
}
