// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes API server with etcd behind it for
// the end-to-end tests, and fills it: the manifests of deploy/ at start, then
// what a test applies.
//
//	test ──Apply, CreatePod, …──► kube-apiserver ──► etcd (unix socket)
//	                                   ▲
//	       agent ──Kubeconfig──────────┘
//
// There is no kubelet, scheduler or controller: a pod is what CreatePod says,
// and nothing ever changes by itself. The two servers are processes of their
// own, so that a test can kill the API server while etcd keeps the data.
//
// A method that fails ends the test, so it belongs on the test's goroutine. A
// goroutine that makes changes while the API server may be down uses Client or
// Dynamic and handles the errors.
package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-net/sluice/cmd/e2e/process"
)

// Namespace is where deploy/ puts the agent and its service account.
const Namespace = "sluice-system"

const (
	startTimeout   = 2 * time.Minute // of the API server, on a busy machine
	requestTimeout = 30 * time.Second
	pollInterval   = 20 * time.Millisecond
	startTries     = 5  // ports tried before giving up
	logLines       = 40 // of each server, shown when a test fails
)

// Cluster is a running API server, its etcd and clients for it.
type Cluster struct {
	t      testing.TB
	binary string // see testdata/kubernetes
	dir    string // working directory of both servers
	port   int    // of the API server; kept over restarts

	etcd      *process.Process
	apiserver *process.Process // nil while it is killed

	admin   *rest.Config
	http    *http.Client
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// Start runs etcd and the API server from the binary that testdata/kubernetes
// builds, waits until it is ready and applies deploy/'s namespace, CRDs and
// RBAC. Everything ends with the test and lives in its temporary directory.
func Start(t testing.TB, binary string) *Cluster {
	t.Helper()
	c := startEmpty(t, binary)
	c.applyDeploy()
	return c
}

// startEmpty is Start with nothing applied.
func startEmpty(t testing.TB, binary string) *Cluster {
	t.Helper()
	binary, err := filepath.Abs(binary)
	require.NoError(t, err)
	c := &Cluster{t: t, binary: binary, dir: t.TempDir()}
	require.NoError(t, writeCredentials(c.dir))
	t.Cleanup(c.stop)

	c.etcd, err = c.run("etcd", "etcd", "--data-dir=etcd", "--client-url="+etcdURL)
	require.NoError(t, err)
	require.NoError(t, c.startOnFreePort())
	require.NoError(t, c.connect())
	return c
}

// stop ends both servers and closes the connections of the clients.
func (c *Cluster) stop() {
	for _, p := range []*process.Process{c.apiserver, c.etcd} {
		if p == nil {
			continue
		}
		p.Kill()
		if c.t.Failed() {
			c.t.Logf("last lines of %s:\n%s", p.Name, p.LogTail(logLines))
		}
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// connect makes the clients, all on one HTTP client.
func (c *Cluster) connect() (err error) {
	ca, err := os.ReadFile(c.caFile())
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	c.admin = &rest.Config{
		Host:            c.url(),
		BearerToken:     adminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		QPS:             -1, // no limit
		WarningHandler:  rest.NoWarnings{},
	}
	if c.http, err = rest.HTTPClientFor(c.admin); err != nil {
		return fmt.Errorf("make HTTP client: %w", err)
	}
	clients, err := kubernetes.NewForConfigAndClient(c.admin, c.http)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(c.admin, c.http); err != nil {
		return fmt.Errorf("make dynamic client: %w", err)
	}
	c.client = clients
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(clients.Discovery()))
	return nil
}

// Admin returns a configuration for a client that may do everything.
func (c *Cluster) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// Client returns a typed client that may do everything.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Dynamic returns an untyped client that may do everything.
func (c *Cluster) Dynamic() dynamic.Interface { return c.dynamic }

// Kubeconfig writes a kubeconfig with a fresh token of a service account in
// Namespace, good for a day, and returns its path.
func (c *Cluster) Kubeconfig(serviceAccount string) string {
	c.t.Helper()
	return c.writeKubeconfig(c.serviceAccountToken(serviceAccount, nil))
}

// KubeconfigOn is Kubeconfig of a pod that it creates on a node: as with those that a
// kubelet gives to pods, the token names pod and node.
func (c *Cluster) KubeconfigOn(node, serviceAccount string) string {
	c.t.Helper()
	return c.writeKubeconfig(c.serviceAccountToken(serviceAccount, c.createClientPod(node, serviceAccount)))
}

func (c *Cluster) writeKubeconfig(token string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(kubeconfig(c.url(), c.admin.CAData, token), path))
	return path
}

// KillAPIServer ends the API server with SIGKILL; etcd keeps the data.
func (c *Cluster) KillAPIServer() {
	c.t.Helper()
	require.NotNil(c.t, c.apiserver, "the API server is not running")
	c.apiserver.Kill()
	c.apiserver = nil
}

// StartAPIServer starts a killed API server, on the port that it had, and
// waits until it is ready.
func (c *Cluster) StartAPIServer() {
	c.t.Helper()
	require.Nil(c.t, c.apiserver, "the API server is running")
	require.NoError(c.t, c.startAPIServer())
}

// Compact makes etcd forget all but the current revision, which it returns.
//
// A running API server still has recent events in its watch cache, and serves
// watches from there. Once it is killed and started again, a watch that
// resumes from an older revision is told that it has expired.
func (c *Cluster) Compact() (revision int64) {
	c.t.Helper()
	ctx, cancel := requestContext()
	defer cancel()
	out, err := c.command(ctx, "compact", "--client-url="+etcdURL).Output()
	require.NoError(c.t, err, "compact etcd")
	revision, err = strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	require.NoError(c.t, err, "parse revision")
	return revision
}

// startOnFreePort picks a port and starts the API server on it; another one if
// another process took it before.
func (c *Cluster) startOnFreePort() (err error) {
	for range startTries {
		if c.port, err = freePort(); err != nil {
			return err
		}
		if err = c.startAPIServer(); err == nil || !c.portTaken() {
			return err
		}
	}
	return err
}

// portTaken reports whether the API server's last words were that it could not
// listen.
func (c *Cluster) portTaken() bool {
	text, err := os.ReadFile(filepath.Join(c.dir, "apiserver.log"))
	return err == nil && strings.Contains(string(text), "address already in use")
}

func (c *Cluster) startAPIServer() error {
	p, err := c.run("apiserver", append([]string{"kube-apiserver"}, apiserverFlags(c.port)...)...)
	if err != nil {
		return err
	}
	if err := c.waitReady(p); err != nil {
		p.Kill()
		return fmt.Errorf("wait for the API server: %w; its last lines:\n%s", err, p.LogTail(logLines))
	}
	c.apiserver = p
	return nil
}

// waitReady polls /readyz until it answers 200 or the process is gone.
func (c *Cluster) waitReady(p *process.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		select {
		case <-p.Exited():
			return false, fmt.Errorf("it ended: %s", p.State())
		default:
		}
		last = c.probe(ctx)
		return last == nil, nil
	})
	if ctx.Err() != nil && last != nil {
		return last
	}
	return err
}

// probe asks /readyz once. The certificate is the API server's own, which it
// writes on its first start.
func (c *Cluster) probe(ctx context.Context) error {
	ca, err := os.ReadFile(c.caFile())
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(&rest.Config{
		BearerToken:     adminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
	})
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url()+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answers %s", response.Status)
	}
	return nil
}

func requestContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), requestTimeout)
}
