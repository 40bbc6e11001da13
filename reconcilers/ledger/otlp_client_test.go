// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/testdata/await"
)

// notPassed is how an error begins, before the name of the file.
const notPassed = "the server's certificate does not pass with the CAs of --ledger-otlp-ca-file "

// TestOTLPWithTLS: a collector that wants a client certificate and headers gets both. What is wrong
// with one of the files an error says, and files are read again.
func TestOTLPWithTLS(t *testing.T) {
	good, wrong := newAuthority(t), newAuthority(t)
	c := newTLSCollector(t, good)
	wrong.issue("client", &x509.Certificate{})
	const secret = "Bearer c2VjcmV0"
	c.wanted.Store(&http.Header{"Authorization": {secret}, "X-Tenant": {"shop"}})
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, from string) {
		t.Helper()
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file(name), content, 0o600))
	}
	headers := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file("headers"), []byte(text), 0o600))
	}
	config := Config{
		LedgerOTLPEndpoint: c.URL, LedgerOTLPHeadersFile: file("headers"),
		LedgerOTLPCAFile:   file("ca"),
		LedgerOTLPCertFile: file("cert"), LedgerOTLPKeyFile: file("key"),
	}
	o, err := newOTLP(config, "node")
	require.NoError(t, err)
	defer o.close()
	fails := func(want string) {
		t.Helper()
		done, lost, err := o.write(t.Context(), numbered(1, 10))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "c2Vj", "secrets are in no message")
		require.Equal(t, []int{0, 0}, []int{done, lost})
	}
	fails("read --ledger-otlp-headers-file: open " + file("headers") + ": no such file")
	headers("# of the test\n\nAuthorization c2VjcmV0\n")
	fails("headers: line 3: want NAME: VALUE")
	headers("authorization: Bearer c2Vjold\nX-Tenant: shop\n")
	fails("read --ledger-otlp-ca-file: open " + file("ca") + ": no such file")
	put("ca", wrong.path("ca.key"))
	fails("read --ledger-otlp-ca-file " + file("ca") + ": no certificate in it")
	put("ca", wrong.path("ca.crt"))
	fails("read --ledger-otlp-cert-file " + file("cert"))
	put("cert", wrong.path("client.crt"))
	put("key", wrong.path("client.key"))
	fails(notPassed + file("ca"))
	put("ca", good.path("ca.crt"))
	fails("send logs of the ledger: Post ") // the server closes the connection
	put("key", good.path("client.key"))
	fails("read --ledger-otlp-cert-file " + file("cert"))
	put("cert", good.path("client.crt"))
	fails("401 Unauthorized")
	require.Empty(t, c.received())
	headers("authorization: " + secret + "\nX-Tenant: shop\n")
	done, lost, err := o.write(t.Context(), numbered(1, 10))
	require.NoError(t, err)
	require.Equal(t, []int{10, 0}, []int{done, lost})
	require.Len(t, c.received(), 10)
	require.Equal(t, "client", c.client.Load())
}

// TestOTLPWrongCA: health says that the server is not the one of the CA. When the file is right
// nothing is missing.
func TestOTLPWrongCA(t *testing.T) {
	good, wrong := newAuthority(t), newAuthority(t)
	c := newTLSCollector(t, good)
	ca := filepath.Join(t.TempDir(), "ca")
	require.NoError(t, os.Symlink(wrong.path("ca.crt"), ca))
	k := newKernel(t, 1<<16)
	a := start(t, func() *bpf.Ledger { return &k.Ledger }, "--ledger-otlp-endpoint="+c.URL,
		"--ledger-otlp-ca-file="+ca, "--ledger-otlp-cert-file="+good.path("client.crt"),
		"--ledger-otlp-key-file="+good.path("client.key"))
	a.known()
	now := time.Now()
	k.write(raw(bpf.LedgerBegin, now, now), 1)
	said := a.says("record.otlp", cell.StatusDegraded)
	require.Contains(t, said, notPassed+ca)
	require.Contains(t, said, "signed by unknown authority")
	require.NoError(t, os.Remove(ca))
	require.NoError(t, os.Symlink(good.path("ca.crt"), ca))
	await.True(t, func() bool { return len(c.received()) == 2 })
	a.says("record.otlp", cell.StatusOK)
	require.Zero(t, a.records("otlp", "lost"))
}

// TestOTLPRedirected: headers go to no other server.
func TestOTLPRedirected(t *testing.T) {
	c := newCollector(t)
	other := newCollector(t)
	c.redirect.Store(&other.URL)
	o, err := newOTLP(Config{LedgerOTLPEndpoint: c.URL}, "node")
	require.NoError(t, err)
	defer o.close()
	_, lost, err := o.write(t.Context(), numbered(1, 1))
	require.ErrorContains(t, err, "307 Temporary Redirect")
	require.Equal(t, 1, lost)
	require.Empty(t, other.received())
}

func TestOTLPHeaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "headers")
	c := Config{LedgerOTLPHeadersFile: path}
	for text, want := range map[string]http.Header{
		"":                                      {},
		"a: b":                                  {"A": {"b"}},
		"a:b\r\nA : c\n":                        nil,
		"a:b\r\n# c: d\n\n A:  c ":              {"A": {"b", "c"}},
		"x-empty:":                              {"X-Empty": {""}},
		"content-type: text":                    nil,
		"host: other":                           nil,
		": b":                                   nil,
		"no":                                    nil,
		"a: b\x00":                              nil,
		"a: " + strings.Repeat("b", maxHeaders): nil,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		headers, err := c.headers()
		if want == nil {
			require.ErrorContains(t, err, "read --ledger-otlp-headers-file "+path, "%.20q", text)
			continue
		}
		require.NoError(t, err, "%.20q", text)
		require.Equal(t, want, headers, "%.20q", text)
	}
}

func TestOTLPConfig(t *testing.T) {
	const https, http = "--ledger-otlp-endpoint=https://c:1", "--ledger-otlp-endpoint=http://c:1"
	for _, tc := range []struct {
		want string
		args []string
	}{
		{`--ledger-otlp-endpoint "collector:4318": want http://HOST:PORT`, []string{
			"--ledger-otlp-endpoint=collector:4318",
		}},
		{`--ledger-otlp-endpoint "http://": want http://HOST:PORT`, []string{
			"--ledger-otlp-endpoint=http://",
		}},
		{`--ledger-otlp-endpoint: invalid port`, []string{"--ledger-otlp-endpoint=https://c:x"}},
		{`--ledger-otlp-endpoint "https://me:xxxxx@c": want no credentials there`, []string{
			"--ledger-otlp-endpoint=https://me:secret@c",
		}},
		{"want https, or --ledger-otlp-insecure", []string{http}},
		{"--ledger-otlp-insecure: --ledger-otlp-endpoint \"https://c:1\" has https", []string{
			https, "--ledger-otlp-insecure",
		}},
		{"--ledger-otlp-insecure needs --ledger-otlp-endpoint", []string{"--ledger-otlp-insecure"}},
		{"--ledger-otlp-ca-file needs https", []string{
			http, "--ledger-otlp-insecure", "--ledger-otlp-ca-file=/ca",
		}},
		{"--ledger-otlp-headers-file needs --ledger-otlp-endpoint", []string{
			"--ledger-otlp-headers-file=/headers",
		}},
		{`--ledger-otlp-ca-file "ca" is not an absolute path`, []string{
			https, "--ledger-otlp-ca-file=ca",
		}},
		{"--ledger-otlp-cert-file needs --ledger-otlp-key-file", []string{
			https, "--ledger-otlp-cert-file=/cert",
		}},
		{"--ledger-otlp-key-file needs --ledger-otlp-cert-file", []string{
			https, "--ledger-otlp-key-file=/key",
		}},
	} {
		_, err := tryStart(t, func() *bpf.Ledger { return nil }, tc.args...)
		require.ErrorContains(t, err, tc.want)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, args := range [][]string{
		{https}, {http, "--ledger-otlp-insecure", "--ledger-otlp-headers-file=/headers"},
		{
			https, "--ledger-otlp-ca-file=/ca", "--ledger-otlp-cert-file=/c",
			"--ledger-otlp-key-file=/k",
		},
	} {
		_, err := tryStart(t, func() *bpf.Ledger { return nil }, args...)
		require.NoError(t, err)
	}
}
