// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/sluice-net/sluice/cmd/api"
)

// asked are the paths of the agent that are one file each. The goroutines are the
// first: they are what is to be known of an agent that hangs.
var asked = []struct {
	path, file string
	optional   bool // not every agent has it
}{
	{"/debug/pprof/goroutine?debug=2", "agent/goroutines.txt", false}, // on the socket only
	{"/status", "agent/status.json", true},
	{"/version", "agent/version.json", false},
	{"/healthz", "agent/health.json", false},
	{"/readyz", "agent/ready.json", false},
	{"/rules", "agent/rules.json", false},
	{"/graph", "agent/graph.json", true},
	{"/metrics", "agent/metrics.txt", false},
	{"/debug/pprof/heap?debug=1", "agent/heap.txt", true},
	{"/tables", "agent/tables.json", false},
}

// ask adds what the agent answers.
func (d *dump) ask(ctx context.Context, c *client) {
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	for _, a := range asked {
		d.askOne(ctx, c, a.path, a.file, a.optional)
	}
	var tables []api.Table
	if err := c.getJSON(ctx, "/tables", &tables); err != nil {
		d.Fail("tables", err)
		return
	}
	for _, t := range tables {
		file := "tables/" + t.Name + ".json"
		body, err := c.get(ctx, "/statedb/dump/"+url.PathEscape(t.Name))
		if err != nil {
			d.Fail(file, err)
			continue
		}
		d.Rows(file, body)
		body.Close()
	}
}

// askOne adds an answer, whatever its status: what is not ready says why.
func (d *dump) askOne(ctx context.Context, c *client, path, file string, optional bool) {
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		d.Fail(file, cause(err))
		return
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound && optional:
	case resp.StatusCode == http.StatusNotFound:
		d.Fail(file, fmt.Errorf("the agent does not answer %s here", path))
	case resp.Header.Get("Content-Type") == "application/json":
		d.JSON(file, func() (any, error) {
			var v any
			dec := json.NewDecoder(io.LimitReader(resp.Body, int64(d.maxFile)))
			dec.UseNumber()
			err := dec.Decode(&v)
			return v, err
		})
	default:
		d.Text(file, func(w io.Writer) error {
			_, err := io.Copy(w, resp.Body)
			return err
		})
	}
}
