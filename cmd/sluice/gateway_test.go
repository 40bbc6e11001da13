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
	status := func(drain string, leaving int, addrs string) string {
		return fmt.Sprintf(`{"drain":%q,"omitted":400,"summary":{"leaving":%d},"policies":[{"policy":
			"CiliumEgressGatewayPolicy/a","wanted":1,"programmed":1,"egressIPs":[%s]}]}`,
			drain, leaving, addrs)
	}
	const marked = "MARKED" // in tests, for the value that the command gives the annotation
	values := map[string]bool{}
	var value string
	var requests, reports []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		text := string(body)
		if _, after, isMark := strings.Cut(text, `drain-gateway":"`); isMark {
			value, _, _ = strings.Cut(after, `"`)
			text = strings.ReplaceAll(text, value, marked)
			values[value] = true
		}
		requests = append(requests, strings.TrimSpace(fmt.Sprintln(
			r.Method, r.URL.Path, r.Header.Get("Content-Type"), text)))
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/api/v1/nodes/node-2":
			fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-2"}}`)
		case r.Method == http.MethodGet && len(reports) > 0:
			fmt.Fprintf(w, `{"kind":"NodeReport","apiVersion":"sluice.io/v1alpha1",
				"metadata":{"name":"node-2"},"status":%s}`, strings.ReplaceAll(reports[0], marked, value))
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
	const drain = patch + `{"metadata":{"annotations":{"sluice.net/drain-gateway":"MARKED"}}}`
	const read = "GET /apis/sluice.io/v1alpha1/nodereports/node-2"

	const addr = `"192.0.2.7"`
	const before = "2026-11-24T12:00:00Z" // of a draining that was undone
	reports = []string{
		status("", 0, ""), status(before, 0, ""), status(marked, 1, addr), status(marked, 0, ""),
	}
	code, out, _ := command("gateway", "drain", "node-2")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "node node-2: marked as drained")
	require.Contains(t, out, "node node-2: no policy has it as gateway any more")
	require.Equal(t, []string{drain, read, read, read, read}, requests)

	for report, want := range map[string]string{
		status(marked, 1, addr): "still the gateway of CiliumEgressGatewayPolicy/a [192.0.2.7]: a policy",
		status(marked, 3, addr): "CiliumEgressGatewayPolicy/a [192.0.2.7], 2 more: a policy",
		status("", 0, ""):       "its NodeReport does not say so",
		status(before, 0, ""):   "its NodeReport does not say so",
		status("true", 0, ""):   "its NodeReport does not say so",
		status(marked, 3, ""):   "still the gateway of 3 more",
		"{}":                    "its NodeReport does not say so",
		"":                      "read NodeReport node-2",
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

	require.Len(t, values, 9) // each another

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
