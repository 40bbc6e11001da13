// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A handler that panics once it wrote must not look as if it had finished.
func TestPanicAfterWriting(t *testing.T) {
	srv := httptest.NewServer(guard(slog.New(slog.DiscardHandler), newLimits(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("x", 10000))
		panic(errors.New("marshal"))
	})))
	defer srv.Close()
	resp, err := http.Get(srv.URL)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	require.Error(t, err)
	var netErr net.Error
	require.False(t, errors.As(err, &netErr) && netErr.Timeout())
}
