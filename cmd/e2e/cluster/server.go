// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-net/sluice/cmd/e2e/process"
)

// Files are named relative to the servers' working directory, Cluster.dir.
const (
	etcdURL    = "unix://etcd.sock"
	tokenFile  = "tokens.csv"
	keyFile    = "service-accounts.key"
	certDir    = "certificates"
	adminToken = "admin"
)

// Ports below the range that the kernel gives to outgoing connections, so that
// none of those can take the port while the API server is down.
const (
	firstPort = 20000
	lastPort  = 32000
)

// binaryVariable names the environment variable with the servers' binary.
const binaryVariable = "SLUICE_E2E_KUBERNETES"

// Binary returns the path of the servers' binary, which the environment names.
func Binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv(binaryVariable)
	if path == "" {
		t.Fatalf("%s is not set; build the binary with make kubernetes", binaryVariable)
	}
	return path
}

// apiserverFlags are for an API server with RBAC and real service-account
// tokens. The admission of service accounts is off: it needs the controller
// that makes the default account of each namespace.
func apiserverFlags(port int) []string {
	return []string{
		"--etcd-servers=" + etcdURL,
		"--etcd-compaction-interval=0", // only Compact does
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // it would refuse a loopback address
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + certDir,
		"--authorization-mode=RBAC",
		"--token-auth-file=" + tokenFile,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + keyFile,
		"--service-account-key-file=" + keyFile,
		"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged",
	}
}

// writeCredentials writes the administrator's token and the key that signs
// service-account tokens.
func writeCredentials(dir string) error {
	tokens := adminToken + `,admin,admin,"system:masters"` + "\n"
	if err := os.WriteFile(filepath.Join(dir, tokenFile), []byte(tokens), 0o600); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(filepath.Join(dir, keyFile), text, 0o600); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return nil
}

// caFile is the API server's certificate, which contains what signed it.
func (c *Cluster) caFile() string { return filepath.Join(c.dir, certDir, "apiserver.crt") }

func (c *Cluster) url() string {
	return "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
}

// command is the binary with arguments, in the servers' working directory.
func (c *Cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.binary, args...)
	cmd.Dir = c.dir
	return cmd
}

// run starts the binary with arguments; its output goes to NAME.log in the
// servers' working directory.
func (c *Cluster) run(name string, args ...string) (*process.Process, error) {
	return process.Start(name, filepath.Join(c.dir, name+".log"), c.command(context.Background(), args...))
}

// freePort returns a port that nothing listens on at the moment.
func freePort() (int, error) {
	var err error
	for range startTries {
		port := firstPort + mathrand.IntN(lastPort-firstPort)
		var listener net.Listener
		if listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.Join(errors.New("find a free port"), err)
}

// kubeconfig has one cluster, one user and one context of that user there.
func kubeconfig(url string, ca []byte, token string) clientcmdapi.Config {
	const name = "e2e"
	return clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: url, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
}
