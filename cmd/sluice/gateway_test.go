// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGatewayDrain: the commands patch the annotation of the Node, and nothing else. The first one
// waits until no policy has the node as gateway, by what the node reports.
func TestGatewayDrain(t *testing.T) {
	status := func(draining bool, omitted int, addrs string) string {
		return fmt.Sprintf(`{"draining":%t,"omitted":%d,"policies":[{"policy":
			"CiliumEgressGatewayPolicy/a","wanted":1,"programmed":1,"egressIPs":[%s]}]}`,
			draining, omitted, addrs)
	}
	var requests, reports []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests = append(requests, strings.TrimSpace(fmt.Sprintln(
			r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(body))))
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/api/v1/nodes/node-2":
			fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-2"}}`)
		case r.Method == http.MethodGet && len(reports) > 0:
			fmt.Fprintf(w, `{"kind":"NodeReport","apiVersion":"sluice.io/v1alpha1",
				"metadata":{"name":"node-2"},"status":%s}`, reports[0])
			reports = reports[min(1, len(reports)-1):]
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound",
				"code":404,"message":"not found"}`)
		}
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, server.URL), 0o600))

	command := func(args ...string) (code int, out, complaint string) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), append(args, "--kubeconfig="+kubeconfig), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	const patch = "PATCH /api/v1/nodes/node-2 application/merge-patch+json "
	const drain = patch + `{"metadata":{"annotations":{"sluice.net/drain-gateway":"true"}}}`
	const read = "GET /apis/sluice.io/v1alpha1/nodereports/node-2"

	const addr = `"192.0.2.7"`
	reports = []string{status(false, 0, ""), status(true, 0, addr), status(true, 0, "")}
	code, out, _ := command("gateway", "drain", "node-2")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "node node-2: marked as drained")
	require.Contains(t, out, "node node-2: no policy has it as gateway any more")
	require.Equal(t, []string{drain, read, read, read}, requests)

	for report, want := range map[string]string{
		status(true, 0, addr): "still the gateway of CiliumEgressGatewayPolicy/a [192.0.2.7]: a policy",
		status(false, 0, ""):  "its NodeReport does not say so",
		status(true, 3, ""):   "its NodeReport leaves out 3 policies",
		"{}":                  "its NodeReport does not say so",
		"":                    "read NodeReport node-2",
	} {
		reports = []string{report}
		if report == "" {
			reports = nil
		}
		code, _, complaint := command("gateway", "drain", "node-2", "--wait=1ms")
		require.Equal(t, exitError, code, report)
		require.Contains(t, complaint, "node node-2 is marked as drained, but after 1ms ")
		require.Contains(t, complaint, want)
	}
	code, _, _ = command("gateway", "drain", "node-2", "--wait=-1s")
	require.Equal(t, exitUsage, code)

	requests = nil
	code, _, _ = command("gateway", "drain", "node-2", "--wait=0")
	require.Equal(t, exitOK, code)
	code, _, _ = command("gateway", "undrain", "node-2")
	require.Equal(t, exitOK, code)
	require.Equal(t, []string{
		drain, patch + `{"metadata":{"annotations":{"sluice.net/drain-gateway":null}}}`,
	}, requests)
	code, _, complaint := command("gateway", "drain", "node-9")
	require.Equal(t, exitError, code)
	require.Contains(t, complaint, "annotate node node-9")
	code, _, complaint = command("gateway", "drain")
	require.Equal(t, exitUsage, code)
	require.Contains(t, complaint, "want NODE")
}
