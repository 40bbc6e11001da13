// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// checkHost refuses requests that are for another host than a listener on
// loopback has. A web page can have a name of its own resolve to a loopback
// address, and would then read the API as its own (DNS rebinding). The browser
// still tells that name. Names are not checked for a listener that other machines
// reach: they may have any.
func (h *handlers) checkHost(listen string, next http.Handler) http.Handler {
	if !loopback(listen) {
		return next
	}
	own, _, _ := net.SplitHostPort(listen)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isHere(r.Host, own) {
			h.limits.refuse(refusedHost)
			writeError(w, http.StatusForbidden, "the API of this agent is for this machine: ask it as localhost, not as %q", r.Host)
			return
		}
		if fromElsewhere(r) {
			h.limits.refuse(refusedHost)
			writeError(w, http.StatusForbidden, "the API of this agent answers no other web page")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromElsewhere reports whether a page of another origin sends a request: it could
// not read the answer, but could take the place of who may. To go to the agent's
// page by a link is no such request.
func fromElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}

// isHere reports whether a Host header names this machine by a loopback address.
// The port may be another: it may be forwarded. HTTP/1.0 has no such header.
func isHere(header, own string) bool {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(host, "."), "["), "]")
	if header == "" || strings.EqualFold(host, "localhost") || strings.EqualFold(host, own) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
