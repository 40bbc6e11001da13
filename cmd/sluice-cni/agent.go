// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/sluice-net/sluice/tables/cnifile"
)

const (
	// answerTime is how long a running agent may take until all policies of the pod are
	// in the kernel. An agent that is starting uses part of it to load its tables.
	answerTime = 10 * time.Second

	// latency is how much longer the plugin waits for the agent's answer to arrive.
	latency = time.Second

	// graceTime is how long an ADD waits for an agent to answer when the plugin already
	// holds the pod: an agent that is being upgraded is back within that time.
	graceTime = 2 * time.Second

	retryTime = 50 * time.Millisecond
)

// await returns when all policies of a pod are in the kernel, or the pod is held.
func await(ctx context.Context, c *config, a *cnifile.Attachment) error {
	began, held := time.Now(), false
	var last error
	for {
		err := ask(ctx, c.Socket, a)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil && last != nil && !held {
			return last // it says more than that the time is up
		}
		if !held {
			var holdErr error
			if held, holdErr = hold(c.BPFFS, a); holdErr != nil {
				held = false
				err = fmt.Errorf("%w; %w", err, holdErr)
			}
		}
		if held && time.Since(began) >= graceTime {
			return nil
		}
		last = err
		select {
		case <-ctx.Done():
			return last
		case <-time.After(retryTime):
		}
	}
}

// ask asks the agent, and returns when it answers that all policies of a pod are in the
// kernel, or that the pod is held.
func ask(ctx context.Context, socket string, a *cnifile.Attachment) error {
	timeout := answerTime
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(0, min(timeout, time.Until(deadline)-latency))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout+latency)
	defer cancel()
	query := url.Values{"container": {a.Container}, "interface": {a.IfName},
		"timeout": {timeout.String()}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://sluice/cni/wait?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	// An agent that runs without --cni-plugin removes the plugin, and finds pods by the
	// API server and the kernel's routes.
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNotFound {
		return nil
	}
	var answer struct {
		Err string `json:"err"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Err == "" {
		answer.Err = resp.Status
	}
	return fmt.Errorf("ask the agent: %s", answer.Err)
}

// answers returns an error unless something listens on the agent's socket.
func answers(socket string) error {
	conn, err := net.DialTimeout("unix", socket, latency)
	if err == nil {
		conn.Close()
	}
	return err
}
