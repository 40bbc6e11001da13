// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

const isolated = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: prod}
spec:
  podSelector: {}
  ingress:
  - from: [{ipBlock: {cidr: 198.51.100.0/24, except: [198.51.100.128/25]}}]
    ports: [{port: 80}]
`

// TestNetworkPolicy: a policy comes into force from the API server to the maps of
// the kernel with the rights that deploy/ gives, is explained, and goes.
func TestNetworkPolicy(t *testing.T) {
	c := startCluster(t)
	populate(c)
	a := newAgent(t, c)
	a.startReady()
	await := func(from, verdict string) {
		t.Helper()
		a.eventually(from+" is "+verdict, func() error {
			var answer struct {
				Verdict, Reason string
				Rules           []any
				Kernel          *struct{ Verdict string }
				Differences     []any
			}
			status := a.decode("/explain/policy?from="+from+"&to="+localPod.String()+"&port=80", &answer)
			switch {
			case status != http.StatusOK:
				return fmt.Errorf("status %d", status)
			case answer.Kernel == nil || answer.Verdict != answer.Kernel.Verdict || len(answer.Differences) > 0:
				return fmt.Errorf("tables and maps differ: %+v", answer)
			case answer.Verdict != verdict:
				return fmt.Errorf("%+v", answer)
			}
			return nil
		})
	}
	await("198.51.100.1", "allowed")
	await("203.0.113.1", "allowed")

	c.Apply(isolated)
	await("203.0.113.1", "denied")
	await("198.51.100.1", "allowed")
	await("198.51.100.200", "denied")
	out, err := a.sluice("wait", "policy", "prod/isolated", "--timeout=60s", "--server=unix://"+a.socket()).CombinedOutput()
	require.NoError(t, err, "%s", out)

	c.Delete(isolated)
	await("203.0.113.1", "allowed")
}
