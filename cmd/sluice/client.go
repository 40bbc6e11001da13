// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/version"
)

// errNoAgent says that nothing answers where an agent would.
var errNoAgent = errors.New("no agent answers")

// errEnded says that the agent has gone, or has cut off who was too slow.
var errEnded = fmt.Errorf("the agent closed the connection: it was stopped or restarted, or what it sent was not taken in time (%w any more)", errNoAgent)

// attempts are the places where an agent was looked for in vain.
type attempts struct {
	text      strings.Builder
	forbidden bool // one of them is there, and is not for this user
}

func (a *attempts) add(place string, err error) {
	fmt.Fprintf(&a.text, "\n  %s: %v", place, err)
	a.forbidden = a.forbidden || errors.Is(err, fs.ErrPermission)
}

// err returns the error with what to do next.
func (a *attempts) err() error {
	next := "Start one with: sluice agent"
	if a.forbidden {
		next = "The socket is for its owner, mostly root: try sudo"
	}
	return fmt.Errorf("%w; tried:%s\n%s", errNoAgent, &a.text, next)
}

// dialTimeout is for an agent to show that it is there.
const dialTimeout = 3 * time.Second

const unixScheme = "unix://"

// maxErrorBody is how much of an answer that is an error is read.
const maxErrorBody = 64 << 10

// serverFlag adds the flag that says where the agent is.
func serverFlag(flags *pflag.FlagSet) *string {
	return flags.String("server", "", "agent to ask: unix:///path or http://address:port (default: $SLUICE_SERVER, or else the usual ones)")
}

// chosenServer returns the agent that was asked for, empty if it may be any.
func chosenServer(flag string) string { return cmp.Or(flag, os.Getenv("SLUICE_SERVER")) }

// servers returns where to look for an agent, in this order.
func servers(flag string) []string {
	if chosen := chosenServer(flag); chosen != "" {
		return []string{chosen}
	}
	var list []string
	if socket := os.Getenv(agent.EnvironmentName("socket")); socket != "" {
		list = append(list, unixScheme+socket)
	}
	for _, socket := range agent.Sockets() {
		list = append(list, unixScheme+socket)
	}
	listen := os.Getenv(agent.EnvironmentName("api-listen"))
	if listen == "" {
		listen = api.DefaultConfig.APIListen
	}
	return append(list, "http://"+listen)
}

// client asks an agent.
type client struct {
	http   *http.Client
	base   string
	socket string // path of the UNIX socket, empty if it is by TCP
	agent  version.Info
}

// connect returns a client of the first agent that answers.
func connect(ctx context.Context, server string) (*client, error) {
	var tried attempts
	for _, s := range servers(server) {
		c, err := newClient(s)
		if err != nil {
			return nil, agent.UsageErrorf("--server %q: %w", s, err)
		}
		if err = c.probe(ctx); err == nil {
			return c, nil
		}
		c.close()
		tried.add(s, err)
	}
	return nil, tried.err()
}

func newClient(server string) (*client, error) {
	transport := &http.Transport{}
	c := &client{http: &http.Client{Transport: transport}, base: server}
	if strings.HasPrefix(server, "/") {
		server = unixScheme + server
	}
	switch path, isSocket := strings.CutPrefix(server, unixScheme); {
	case isSocket:
		c.base, c.socket = "http://sluice", path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	case strings.Contains(server, "://") && !strings.HasPrefix(server, "http://"):
		return nil, errors.New("want unix:///path or http://address:port")
	case !strings.Contains(server, "://"):
		c.base = "http://" + server
	}
	c.base = strings.TrimSuffix(c.base, "/")
	return c, nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

// probe returns an error unless an agent answers.
func (c *client) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return cause(c.getJSON(ctx, "/version", &c.agent))
}

// otherVersion says how the agent's version differs from this command's, empty if it does not.
func (c *client) otherVersion() string {
	if own := version.Get(); c.agent != own {
		return fmt.Sprintf("it is of another version than this command: %s, not %s", c.agent, own)
	}
	return ""
}

// cause returns what is wrong with a connection, without the request's URL,
// which for a socket means nothing.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// get returns the body of a successful answer.
func (c *client) get(ctx context.Context, path string) (io.ReadCloser, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

// postJSON sends a request and decodes a successful answer.
func (c *client) postJSON(ctx context.Context, path string, request, answer any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	body, err := c.do(ctx, http.MethodPost, path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	return decode(body, answer)
}

// send returns any answer.
func (c *client) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	return c.http.Do(req)
}

// do returns the body of a successful answer.
func (c *client) do(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var answer struct {
		Err string `json:"err"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxErrorBody)).Decode(&answer)
	switch {
	case err == nil && answer.Err != "":
		return nil, errors.New(answer.Err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		name, _, _ := strings.Cut(path, "?")
		return nil, fmt.Errorf("the agent does not know %s: it is of another version than this command, which is %s; sluice version and /version tell them", name, version.Get().Version)
	}
	return nil, fmt.Errorf("the agent answers %s", resp.Status)
}

// query returns the rows with a key, or from it on, a JSON object each.
func (c *client) query(ctx context.Context, q statedb.QueryRequest, key []byte) (io.ReadCloser, error) {
	q.Key = base64.StdEncoding.EncodeToString(key)
	request, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	body, err := c.do(ctx, http.MethodGet, "/statedb/query", bytes.NewReader(request))
	if err != nil {
		return nil, cause(err)
	}
	return body, nil
}

// getJSON decodes a successful answer.
func (c *client) getJSON(ctx context.Context, path string, v any) error {
	body, err := c.get(ctx, path)
	if err != nil {
		return err
	}
	return decode(body, v)
}

func decode(body io.ReadCloser, v any) error {
	defer body.Close()
	if err := json.NewDecoder(body).Decode(v); err != nil {
		return fmt.Errorf("decode the agent's answer: %w", err)
	}
	return nil
}

// stream reads the JSON values of an answer that does not end. It only returns with an error.
func (c *client) stream(ctx context.Context, path string, each func(json.RawMessage) error) error {
	body, err := c.get(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	for dec := json.NewDecoder(body); ; {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return ended(err)
		}
		if err := each(raw); err != nil {
			return err
		}
	}
}

// ended returns the error for a stream of the agent that does not go on, which
// has no end of its own.
func ended(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*net.OpError)) {
		return errEnded
	}
	return err
}
