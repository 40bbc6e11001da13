// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page and the API of an agent that has only a socket are at an address of this machine.
func TestPageOfSocket(t *testing.T) {
	startAgent(t)
	url, err := openPage(t.Context(), strings.TrimPrefix(os.Getenv("SLUICE_SERVER"), "unix://"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(url, "http://127.0.0.1:"), url)
	for path, want := range map[string]string{"": "<!doctype html>", "healthz": `"status"`} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		require.NoError(t, err)
		request.Header.Set("Accept", "text/html")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)
		require.Contains(t, strings.ToLower(string(body)), want)
	}
	response, err := http.Post(url+"gc", "", nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
}
