// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables/cnifile"
)

// asPlugin has this program be the plugin.
const asPlugin = "SLUICE_TEST_AS_CNI_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// node is a network namespace with a pod's in it, and what the plugin is told.
type node struct {
	t                 testing.TB
	host, pod         netns.NsHandle
	hostLinks         *vn.Handle
	dir               string
	device            vn.Link // the node's end
	version, podArgs  string
	container         string
	network           string
	sandbox           string // in the result, of another name than netns
	timeout           string
	first             bool // not chained
	validAttachments  []types.GCAttachment
	socket, run, bpfs string
}

func requirePrivileges(t testing.TB) {
	const reason = "needs root to make network namespaces"
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "":
		t.Fatal(reason)
	default:
		t.Skip(reason)
	}
}

func newNode(t testing.TB) *node {
	requirePrivileges(t)
	dir := t.TempDir()
	n := &node{
		t: t, dir: dir, version: "1.1.0", container: "c1", network: "net", timeout: "30s",
		podArgs: "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web;K8S_POD_UID=u1",
		socket:  filepath.Join(dir, "sock"), run: filepath.Join(dir, "run"),
		bpfs: filepath.Join(dir, "bpffs"),
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	require.NoError(t, err)
	defer own.Close()
	n.host, err = netns.New()
	require.NoError(t, err)
	n.pod, err = netns.New()
	require.NoError(t, err)
	require.NoError(t, netns.Set(own))
	n.hostLinks, err = vn.NewHandleAt(n.host, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	t.Cleanup(func() {
		n.hostLinks.Close()
		n.host.Close()
		n.pod.Close()
	})
	require.NoError(t, n.hostLinks.LinkAdd(&vn.Bridge{LinkAttrs: vn.LinkAttrs{Name: "first"}}))
	require.NoError(t, n.hostLinks.LinkAdd(&vn.Veth{
		LinkAttrs: vn.LinkAttrs{Name: "veth7"}, PeerName: "eth0", PeerNamespace: vn.NsFd(n.pod),
	}))
	n.device, err = n.hostLinks.LinkByName("veth7")
	require.NoError(t, err)
	return n
}

// config is the configuration of the plugin, as the runtime hands it over.
func (n *node) config() []byte {
	c := map[string]any{
		"cniVersion": n.version, "name": n.network, "type": "sluice-cni",
		"socket": n.socket, "runDir": n.run, "bpffs": n.bpfs, "timeout": n.timeout,
	}
	if !n.first {
		c["prevResult"] = json.RawMessage(n.result())
	}
	if n.validAttachments != nil {
		c["cni.dev/valid-attachments"] = n.validAttachments
	}
	data, err := json.Marshal(c)
	require.NoError(n.t, err)
	return data
}

// result is that of a plugin before this one, with a field that it does not know.
func (n *node) result() string {
	address := `"address":"10.1.0.7/24"`
	if strings.HasPrefix(n.version, "0.3") || strings.HasPrefix(n.version, "0.4") {
		address += `,"version":"4"`
	}
	sandbox := n.sandbox
	if sandbox == "" {
		sandbox = n.netns()
	}
	return fmt.Sprintf(
		`{"cniVersion":%q,"dns":{},"interfaces":[{"name":"cni0"},{"name":"veth7"},`+
			`{"name":"eth0","sandbox":%q}],`+
			`"ips":[{%s,"interface":2}],"x-more":[1.50]}`, n.version, sandbox, address)
}

func (n *node) netns() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n.pod)) }

// call runs the plugin in the node's network namespace.
func (n *node) call(command string) (stdout string, failed *types.Error) {
	self, err := os.Executable()
	require.NoError(n.t, err)
	cmd := exec.Command(self)
	cmd.Env = []string{
		asPlugin + "=1", "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + n.container,
		"CNI_NETNS=" + n.netns(),
		"CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin", "CNI_ARGS=" + n.podArgs,
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(n.config()), &out, &errs
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		if err := netns.Set(n.host); err != nil {
			done <- err
			return
		}
		done <- cmd.Run()
	}()
	if err := <-done; err != nil {
		require.ErrorAs(n.t, err, new(*exec.ExitError))
		failed = &types.Error{}
		require.NoError(n.t, json.Unmarshal(out.Bytes(), failed), "%s %s", out.String(), errs.String())
	}
	return out.String(), failed
}

func (n *node) must(command string) string {
	out, failed := n.call(command)
	require.Nil(n.t, failed)
	return out
}

// agent answers on the socket as long as the test runs, or until it is stopped.
func (n *node) agent(answer http.HandlerFunc) (stop func()) {
	l, err := net.Listen("unix", n.socket)
	require.NoError(n.t, err)
	s := &http.Server{Handler: answer}
	served := make(chan struct{})
	go func() { _ = s.Serve(l); close(served) }()
	stop = func() { _ = s.Close(); <-served }
	n.t.Cleanup(stop)
	return stop
}

func applied(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"state":"in-force"}`) }

func (n *node) told() *cnifile.Attachment {
	a, err := cnifile.Read(n.run, cnifile.FileName(n.container, "eth0"))
	require.NoError(n.t, err)
	return a
}
