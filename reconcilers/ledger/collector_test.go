// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"
)

// collector is a server of OTLP/HTTP.
type collector struct {
	*httptest.Server
	status atomic.Int32 // if not 0
	reply  atomic.Pointer[[]byte]

	wanted   atomic.Pointer[http.Header] // else it is refused
	redirect atomic.Pointer[string]      // to another server
	client   atomic.Value                // name of the last one, by its certificate

	mu   sync.Mutex
	logs []*logs.LogRecord
	node string
}

func newCollector(t *testing.T) *collector {
	c := unstartedCollector(t)
	c.Start()
	return c
}

func unstartedCollector(t *testing.T) *collector {
	c := &collector{}
	serve := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var data logs.LogsData
		if err != nil || r.URL.Path != "/v1/logs" || r.Method != http.MethodPost ||
			r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &data) != nil {
			http.Error(w, "not OTLP", http.StatusTeapot)
			return
		}
		if wanted := c.wanted.Load(); wanted != nil {
			for name := range *wanted {
				if r.Header.Get(name) != wanted.Get(name) {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
			}
		}
		if r.TLS != nil {
			c.client.Store(r.TLS.PeerCertificates[0].Subject.CommonName)
		}
		if to := c.redirect.Load(); to != nil {
			http.Redirect(w, r, *to+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		if status := c.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range data.ResourceLogs {
			for _, attribute := range resource.Resource.Attributes {
				if attribute.Key == "k8s.node.name" {
					c.node = attribute.Value.GetStringValue()
				}
			}
			for _, scope := range resource.ScopeLogs {
				c.logs = append(c.logs, scope.LogRecords...)
			}
		}
		if reply := c.reply.Load(); reply != nil {
			w.Write(*reply)
		}
	}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(serve))
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) received() []*logs.LogRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logs
}

// authority is a CA of a test, with files in a directory.
type authority struct {
	testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{TB: t, dir: t.TempDir()}
	a.key, a.cert = a.issue("ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// path returns the name of a file: ca.crt, or NAME.crt and NAME.key of what was issued.
func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue signs a certificate, the authority's own if it has none yet, and writes it and its key.
func (a *authority) issue(name string, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(a, err)
	c, err = x509.ParseCertificate(der)
	require.NoError(a, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(a, err)
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		require.NoError(a, os.WriteFile(a.path(file), pem.EncodeToMemory(block), 0o600))
	}
	return key, c
}

// newTLSCollector is a collector that wants a client certificate of an authority, and has one
// itself.
func newTLSCollector(t *testing.T, a *authority) *collector {
	a.issue("server", &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	a.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	certificate, err := tls.LoadX509KeyPair(a.path("server.crt"), a.path("server.key"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	c := unstartedCollector(t)
	c.TLS = &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientCAs:    pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	c.StartTLS()
	return c
}
