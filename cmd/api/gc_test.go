// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/reconcilers/ctgc"
)

// fakeCollector keeps what it is asked for.
type fakeCollector struct {
	filter gc.Filter
	chosen func(gc.Entry) bool
	reason string
	ctx    context.Context

	passes []gc.Pass
	err    error
}

func (c *fakeCollector) Run(ctx context.Context, f gc.Filter, reason string) ([]gc.Pass, error) {
	c.ctx, c.filter, c.reason = ctx, f, reason
	return c.passes, c.err
}

func (c *fakeCollector) Flush(ctx context.Context, chosen func(gc.Entry) bool, reason string) ([]gc.Pass, error) {
	c.ctx, c.chosen, c.reason = ctx, chosen, reason
	return c.passes, c.err
}

// post returns the answer to POST /gc on the socket.
func (f *fixture) post(body string) (status int, answer GCAnswer) {
	w := httptest.NewRecorder()
	f.mux(true).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/gc", strings.NewReader(body)))
	json.Unmarshal(w.Body.Bytes(), &answer)
	return w.Code, answer
}

func TestGC(t *testing.T) {
	f := newFixture(t)
	c := &fakeCollector{passes: []gc.Pass{{Map: ctmap.CT4TCP, Method: gc.Iterator, Scanned: 7, Expired: 2, Duration: time.Millisecond}}}
	f.collector = c
	for body, want := range map[string]gc.Filter{
		`{"expired": true, "orphans": true}`:        {Expired: true, Orphans: true, ReplyGrace: time.Minute},
		`{"expired": true, "replyGraceSeconds": 0}`: {Expired: true},
		`{"all": true, "replyGraceSeconds": 5}`:     {All: true, ReplyGrace: 5 * time.Second},
		`{"all": true, "replyGraceSeconds": 86400}`: {All: true, ReplyGrace: 24 * time.Hour},
		`{"addrs": ["10.1.0.5", "::ffff:10.1.0.6", "fd00::1"]}`: {ReplyGrace: time.Minute, Addrs: []netip.Addr{
			netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.1.0.6"), netip.MustParseAddr("fd00::1"),
		}},
	} {
		status, answer := f.post(strings.Replace(body, "{", `{"reason": "test", `, 1))
		require.Equal(t, http.StatusOK, status, answer.Err)
		require.Equal(t, c.passes, answer.Passes)
		require.Equal(t, want, c.filter, body)
		require.Equal(t, "test", c.reason)
	}
}

func TestGCOfMatch(t *testing.T) {
	if _, err := gc.Now(); err != nil {
		t.Skip("needs root to read the clock of the maps: ", err)
	}
	f := newFixture(t)
	c := &fakeCollector{}
	f.collector = c
	status, answer := f.post(`{"match": {"pods": ["10.1.0.5", "10.1.0.6"], "ips": ["192.0.2.0/24"], "ports": [443], "protocols": ["TCP"], "states": ["established"]}}`)
	require.Equal(t, http.StatusOK, status, answer.Err)
	entry := func(from, to string, flags ctmap.EntryFlags) gc.Entry {
		return gc.Entry{
			Tuple: ctmap.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), Protocol: 6},
			CT:    &ctmap.Entry{Lifetime: 1<<32 - 1, Flags: flags},
		}
	}
	require.True(t, c.chosen(entry("10.1.0.5:1", "192.0.2.7:443", ctmap.SeenNonSYN)))
	require.True(t, c.chosen(entry("192.0.2.7:443", "10.1.0.6:2", ctmap.SeenNonSYN)))
	require.False(t, c.chosen(entry("10.1.0.7:1", "192.0.2.7:443", ctmap.SeenNonSYN)), "another pod")
	require.False(t, c.chosen(entry("10.1.0.5:1", "192.0.3.7:443", ctmap.SeenNonSYN)), "another address")
	require.False(t, c.chosen(entry("10.1.0.5:1", "192.0.2.7:80", ctmap.SeenNonSYN)), "another port")
	require.False(t, c.chosen(entry("10.1.0.5:1", "192.0.2.7:443", 0)), "another state")
	udp := entry("10.1.0.5:1", "192.0.2.7:443", ctmap.SeenNonSYN)
	udp.Tuple.Protocol = 17
	require.False(t, c.chosen(udp))
}

func TestGCRefuses(t *testing.T) {
	f := newFixture(t)
	c := &fakeCollector{}
	f.collector = c
	for body, message := range map[string]string{
		``:                                       "parse the request: EOF",
		`{}`:                                     "nothing to remove: want one of expired, orphans, addrs, all, match",
		`{"all": true} {}`:                       "more than one JSON value",
		`{"al": true}`:                           `unknown field "al"`,
		`{"all": 1}`:                             "all: want bool, got number",
		`{"addrs": ["web"]}`:                     `addrs[0]: "web" is not an IP address`,
		`{"addrs": ["fe80::1%eth0"]}`:            "addrs[0]",
		`{"all": true, "match": {"ports": [1]}}`: "match: stands alone",
		`{"match": {}}`:                          "match: is empty",
		`{"match": {"port": [1]}}`:               `unknown field "port"`,
		`{"match": {"ports": [65536]}}`:          "match.ports: want uint16, got number 65536",
		`{"match": {"pods": ["web"]}}`:           `match.pods[0]: address "web": want an IPv4 or IPv6 address or prefix`,
		`{"match": {"ips": ["10.0.0.1/8"]}}`:     `match.ips[0]: address "10.0.0.1/8": has bits behind its prefix: want 10.0.0.0/8`,
		`{"match": {"states": ["new"]}}`:         `match.states[0]: state "new": want syn, established`,
		`{"match": {"directions": ["up"]}}`:      `match.directions[0]: direction "up": want out, in`,
		`{"match": {"protocols": ["x"]}}`:        `match.protocols[0]: protocol "x": want tcp, udp`,
		`{"match": {"family": "ip"}}`:            `match.family "ip": want ipv4 or ipv6`,
		`{"expired": true, "reason": "` + strings.Repeat("x", 65) + `"}`: "reason: longer than 64 characters",
		`{"expired": true, "reason": "interval"}`:                        `reason: "interval" is for passes that are not requested`,
		`{"expired": true, "reason": "a\u001b[31m"}`:                     `reason: "a\x1b[31m" has characters that cannot be printed`,
		`{"all": true, "replyGraceSeconds": 86401}`:                      "replyGraceSeconds: 86401 are more than 86400, a day",
	} {
		status, answer := f.post(body)
		require.Equal(t, http.StatusBadRequest, status, body)
		require.Contains(t, answer.Err, message, body)
	}
	require.Nil(t, c.ctx, "nothing was removed")

	status, _ := f.post(`{"reason": "` + strings.Repeat("x", maxBody) + `"}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, status)
	addrs, err := json.Marshal(map[string]any{"addrs": make([]netip.Addr, maxAddrs+1)})
	require.NoError(t, err)
	status, answer := f.post(strings.ReplaceAll(string(addrs), `""`, `"10.0.0.1"`))
	require.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, "addrs: 4097 are more than 4096", answer.Err)
}

func TestGCFails(t *testing.T) {
	f := newFixture(t)
	status, answer := f.post(`{"all": true}`)
	require.Equal(t, http.StatusServiceUnavailable, status, "there is no collector")
	require.Equal(t, "this agent has no kernel maps", answer.Err)

	c := &fakeCollector{}
	f.collector = c
	for err, want := range map[error]int{
		ctgc.ErrNoMaps:      http.StatusServiceUnavailable,
		ctgc.ErrStopped:     http.StatusServiceUnavailable,
		errors.New("eaten"): http.StatusInternalServerError,
	} {
		c.err, c.passes = err, []gc.Pass{{Map: ctmap.CT4TCP}}
		status, answer := f.post(`{"all": true}`)
		require.Equal(t, want, status)
		require.Contains(t, answer.Err, err.Error())
		require.Equal(t, want == http.StatusInternalServerError, len(answer.Passes) == 1, "what was done is told")
	}
}

// Who names maps that are not the agent's does not have the agent's gone through.
func TestGCOfOtherMaps(t *testing.T) {
	f := newFixture(t)
	c := &fakeCollector{}
	f.collector, f.mapsDir = c, func() string { return "/sys/fs/bpf/sluice" }
	status, answer := f.post(`{"all": true, "bpffs": "/mnt/bpf"}`)
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "bpffs: the maps of this agent are in /sys/fs/bpf/sluice, not in /mnt/bpf/sluice", answer.Err)
	require.Nil(t, c.ctx)
	for _, body := range []string{`{"all": true}`, `{"all": true, "bpffs": "/sys/fs/bpf/"}`} {
		status, answer = f.post(body)
		require.Equal(t, http.StatusOK, status, answer.Err)
		require.NotNil(t, c.ctx)
		c.ctx = nil
	}
}

// The owner of the socket removes connections, who comes by TCP does not.
func TestGCByTCP(t *testing.T) {
	socket := socketPath(t)
	h, server := newServerHive(t, []string{"--api-listen=127.0.0.1:0", "--socket=" + socket})
	log := slog.New(slog.DiscardHandler)
	require.NoError(t, h.Populate(log))
	s, c := *server, &fakeCollector{}
	s.handlers.collector = c
	require.NoError(t, h.Start(log, t.Context()))
	post := func(client *http.Client, url string) (int, string) {
		resp, err := client.Post(url+"/gc", "application/json", bytes.NewReader([]byte(`{"all": true}`)))
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	status, body := post(http.DefaultClient, s.URL())
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, body, "owner of the agent's UNIX socket only")
	require.Nil(t, c.ctx)

	status, body = post(overSocket(t, socket), "http://sluice")
	require.Equal(t, http.StatusOK, status, body)
	require.True(t, c.filter.All)
	require.Error(t, c.ctx.Err(), "the request's context has ended with it")
}
