// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
)

// socketClient asks an agent by its UNIX socket.
func socketClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
}

// Get asks the agent's API. An answer that is no success is an error.
func (a *Agent) Get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent of %s answers %s: %s", a.node.Name, response.Status, body)
	}
	return body, nil
}

// Table returns a table as text, as sluice get shows it.
func (a *Agent) Table(ctx context.Context, name string) (string, error) {
	text, err := a.Get(ctx, "/tables/"+name)
	return string(text), err
}

// Rows returns the rows of a table of an agent.
func Rows[Row any](ctx context.Context, a *Agent, table string) ([]Row, error) {
	body, err := a.Get(ctx, "/statedb/dump/"+table)
	if err != nil {
		return nil, err
	}
	var dump map[string][]Row
	if err := json.Unmarshal(body, &dump); err != nil {
		return nil, fmt.Errorf("decode table %s: %w", table, err)
	}
	return dump[table], nil
}

// Await waits until there is no error. It gives up when the agent has ended.
func (a *Agent) Await(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if p := a.current(); p != nil {
		go func() {
			select {
			case <-p.exited:
				cancel(fmt.Errorf("the agent has ended (%s): %s", p.cmd.ProcessState, a.lastLine()))
			case <-ctx.Done():
			}
		}()
	}
	return eventually(ctx, fmt.Sprintf("on %s %s", a.node.Name, what), func() error { return check(ctx) })
}

// AwaitRows waits until a table of an agent is as it should be.
func AwaitRows[Row any](ctx context.Context, a *Agent, table string, check func([]Row) error) error {
	return a.Await(ctx, "table "+table+" is as expected", func(ctx context.Context) error {
		rows, err := Rows[Row](ctx, a, table)
		if err != nil {
			return err
		}
		return check(rows)
	})
}

// AwaitReady waits until the agent has taken in everything, once.
func (a *Agent) AwaitReady(ctx context.Context) error {
	return a.Await(ctx, "the agent is ready", func(ctx context.Context) error {
		_, err := a.Get(ctx, "/readyz")
		return err
	})
}
