// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// askTimeout bounds how long Cilium's agent may take to answer.
const askTimeout = 3 * time.Second

// hostRouting asks Cilium's agent whether it forwards in BPF, past the host's
// stack. Agents before 1.16 do not tell.
func hostRouting(ctx context.Context, socket string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/v1/healthz", nil)
	if err != nil {
		return false, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	var status struct {
		Routing struct {
			Mode string `json:"intra-host-routing-mode"`
		} `json:"routing"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return false, fmt.Errorf("parse its status (%s): %w", resp.Status, err)
	}
	switch mode := status.Routing.Mode; mode {
	case "BPF":
		return true, nil
	case "Legacy":
		return false, nil
	default:
		return false, fmt.Errorf("its status (%s) has host routing mode %q, want BPF or Legacy", resp.Status, mode)
	}
}
