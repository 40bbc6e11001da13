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
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGatewayDrain: the commands patch the annotation of the Node, and nothing else.
func TestGatewayDrain(t *testing.T) {
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests = append(requests,
			fmt.Sprintln(r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(body)))
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/nodes/node-2" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,
				"message":"nodes \"node-9\" not found"}`)
			return
		}
		fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-2"}}`)
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
	code, out, _ := command("gateway", "drain", "node-2")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "node node-2: drained")
	code, _, _ = command("gateway", "undrain", "node-2")
	require.Equal(t, exitOK, code)
	const patch = "PATCH /api/v1/nodes/node-2 application/merge-patch+json "
	require.Equal(t, []string{
		patch + `{"metadata":{"annotations":{"sluice.net/drain-gateway":"true"}}}` + "\n",
		patch + `{"metadata":{"annotations":{"sluice.net/drain-gateway":null}}}` + "\n",
	}, requests)
	code, _, complaint := command("gateway", "drain", "node-9")
	require.Equal(t, exitError, code)
	require.Contains(t, complaint, "annotate node node-9")
	code, _, complaint = command("gateway", "drain")
	require.Equal(t, exitUsage, code)
	require.Contains(t, complaint, "want NODE")
}
