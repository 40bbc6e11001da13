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
	"time"

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
	return fmt.Sprintf(`{"cniVersion":%q,"dns":{},"interfaces":[{"name":"cni0"},{"name":"veth7"},{"name":"eth0","sandbox":%q}],`+
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

// The agent is told before it is asked, and the result of the plugin before this one is
// handed on to the letter, with each version of the specification.
func TestAdd(t *testing.T) {
	n := newNode(t)
	asked := 0
	n.agent(func(w http.ResponseWriter, r *http.Request) {
		asked++
		require.Equal(t, "/cni/wait", r.URL.Path)
		require.Equal(t, "c1", r.FormValue("container"))
		require.Equal(t, "eth0", r.FormValue("interface"))
		n.told()
		applied(w, r)
	})
	for i, version := range versions.SupportedVersions() {
		n.version = version
		require.JSONEq(t, n.result(), n.must("ADD"), version)
		require.Equal(t, i+1, asked)
		a := n.told()
		require.Equal(t, n.device.Attrs().Index, a.IfIndex)
		require.Equal(t, "veth7", a.Device)
		require.Equal(t, []string{"prod", "web", "u1"}, []string{a.Namespace, a.Pod, a.UID})
		require.Equal(t, "10.1.0.7", a.Addrs[0].String())
		require.Len(t, a.Addrs, 1)
		require.NotEmpty(t, a.MAC)
		require.NotEmpty(t, a.Runtime)
		if version >= "0.4.0" {
			n.must("CHECK")
		}
		n.must("DEL")
		require.NoFileExists(t, filepath.Join(n.run, "c1-eth0.json"))
		n.must("DEL") // once more
	}
}

// CHECK finds out that the agent was told nothing, or of another device.
func TestCheck(t *testing.T) {
	n := newNode(t)
	n.agent(applied)
	_, failed := n.call("CHECK")
	require.NotNil(t, failed)
	require.EqualValues(t, types.ErrUnknownContainer, failed.Code)
	n.must("ADD")
	n.must("CHECK")
	a := n.told()
	a.IfIndex++
	require.NoError(t, cnifile.Write(n.run, a))
	_, failed = n.call("CHECK")
	require.NotNil(t, failed)
	require.Contains(t, failed.Msg, "another device")
}

// An agent that comes late is waited for. One that was never there has the ADD fail, so
// that the kubelet tries again, and nothing is left.
func TestNoAgent(t *testing.T) {
	n := newNode(t)
	n.timeout = "300ms"
	_, failed := n.call("STATUS")
	require.NotNil(t, failed)
	require.EqualValues(t, errNotAvailable, failed.Code)
	_, failed = n.call("ADD")
	require.NotNil(t, failed)
	require.EqualValues(t, types.ErrTryAgainLater, failed.Code)
	require.Contains(t, failed.Msg, "pod prod/web cannot start yet")
	require.NoFileExists(t, filepath.Join(n.run, "c1-eth0.json"))

	n.timeout = "1m"
	go func() {
		time.Sleep(200 * time.Millisecond)
		n.agent(applied)
	}()
	n.must("ADD")
	n.must("STATUS")
}

// An agent that has not read everything yet says so, and is asked again.
func TestAgentStarts(t *testing.T) {
	n := newNode(t)
	asked := 0
	n.agent(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked < 3 {
			http.Error(w, `{"err": "not in force yet: table endpoints"}`, http.StatusServiceUnavailable)
			return
		}
		applied(w, r)
	})
	n.must("ADD")
	require.Equal(t, 3, asked)
}

// What an agent says that has no pod in force in time is in the error.
func TestAgentIsSlow(t *testing.T) {
	n := newNode(t)
	n.timeout = "3s"
	n.agent(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"err": "not in force yet: 10.1.0.7 waits for class 3"}`,
			http.StatusServiceUnavailable)
	})
	_, failed := n.call("ADD")
	require.NotNil(t, failed)
	require.Contains(t, failed.Details, "10.1.0.7 waits for class 3")
}

// An agent that does not follow the plugin any more learns of pods as without it.
func TestAgentDoesNotFollow(t *testing.T) {
	n := newNode(t)
	n.agent(http.NotFound)
	n.must("ADD")
}

// What is no pod of Kubernetes' is none of the agent's, and what is no veth has a reason.
func TestOtherInterfaces(t *testing.T) {
	n := newNode(t)
	n.podArgs = ""
	n.must("ADD")
	require.NoFileExists(t, filepath.Join(n.run, "c1-eth0.json"))

	require.NoError(t, n.hostLinks.LinkDel(n.device))
	inside, err := vn.NewHandleAt(n.pod, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer inside.Close()
	require.NoError(t, inside.LinkAdd(&vn.Bridge{LinkAttrs: vn.LinkAttrs{Name: "eth0"}}))
	n.podArgs = "K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web"
	n.must("ADD")
	require.Contains(t, n.told().Reason, "eth0 is no veth but a bridge")
}

// A result whose addresses are not said to be of this interface stops no pod: it has those
// of the interface itself. Without any the agent is told why, and the pod starts.
func TestAddressesOfTheInterface(t *testing.T) {
	n := newNode(t)
	n.agent(applied)
	n.sandbox = "/var/run/netns/another-name"
	inside, err := vn.NewHandleAt(n.pod, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer inside.Close()
	eth0, err := inside.LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, inside.LinkSetUp(eth0)) // which gives it a link-local address
	require.NoError(t, n.hostLinks.LinkSetUp(n.device))

	require.JSONEq(t, n.result(), n.must("ADD"))
	require.Equal(t, "eth0 has no address: the agent learns of the pod by its status", n.told().Reason)
	require.Empty(t, n.told().Addrs)
	require.Zero(t, n.told().IfIndex)

	for _, address := range []string{"10.1.0.9/24", "fd00::9/64", "169.254.3.4/32"} {
		addr, err := vn.ParseAddr(address)
		require.NoError(t, err)
		require.NoError(t, inside.AddrAdd(eth0, addr))
	}
	n.must("CHECK")
	n.must("ADD")
	told := n.told()
	require.Equal(t, "[10.1.0.9 fd00::9]", fmt.Sprint(told.Addrs))
	require.Equal(t, n.device.Attrs().Index, told.IfIndex)
	require.Empty(t, told.Reason)
	n.must("CHECK")
}

// The other end of a pod's veth is in a third network namespace, and has there the index
// of another pod's device on the node. In both pods eth0 has the same index.
func TestOtherEndElsewhere(t *testing.T) {
	n := newNode(t)
	n.agent(applied)
	first, err := vn.NewHandleAt(n.pod, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer first.Close()
	other := newNode(t)
	third, err := vn.NewHandleAt(other.host, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer third.Close()
	second, err := vn.NewHandleAt(other.pod, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer second.Close()
	of := func(h *vn.Handle) *vn.LinkAttrs {
		eth0, err := h.LinkByName("eth0")
		require.NoError(t, err)
		return eth0.Attrs()
	}
	require.Equal(t, of(first).Index, of(second).Index)
	require.Equal(t, of(first).ParentIndex, of(second).ParentIndex)
	require.Equal(t, other.device.Attrs().Index, n.device.Attrs().Index)

	n.pod, n.container = other.pod, "c2"
	n.must("ADD")
	require.Zero(t, n.told().IfIndex)
	require.Equal(t, "the other end of eth0 is not on the node: no program of Sluice's can run at it",
		n.told().Reason)
}

// The plugin says what is wrong with how it is called.
func TestInvalid(t *testing.T) {
	n := newNode(t)
	n.first = true
	_, failed := n.call("ADD")
	require.NotNil(t, failed)
	require.Contains(t, failed.Msg, "there is no prevResult")
	n.must("DEL")

	n = newNode(t)
	n.timeout = "soon"
	_, failed = n.call("ADD")
	require.NotNil(t, failed)
	require.EqualValues(t, types.ErrInvalidNetworkConfig, failed.Code)
	n.must("DEL")

	n.version = "0.2.0"
	_, failed = n.call("ADD")
	require.NotNil(t, failed)
	require.EqualValues(t, types.ErrIncompatibleCNIVersion, failed.Code)

	require.Contains(t, n.must("VERSION"), `"1.1.0"`)
}

// GC leaves what the runtime knows and what is of other networks, and takes everything
// else, also a file that the plugin did not write.
func TestGC(t *testing.T) {
	n := newNode(t)
	n.agent(applied)
	for _, container := range []string{"c1", "c2", "c3"} {
		n.container = container
		n.must("ADD")
	}
	n.container, n.network = "c4", "other"
	n.must("ADD")
	n.network = "net"
	require.NoError(t, os.WriteFile(filepath.Join(n.run, "c9-eth0.json"), []byte("{"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(n.run, "other"), nil, 0o600))
	n.validAttachments = []types.GCAttachment{{ContainerID: "c2", IfName: "eth0"},
		{ContainerID: "c3", IfName: "eth1"}}
	n.must("GC")
	names, err := cnifile.List(n.run)
	require.NoError(t, err)
	require.Equal(t, []string{"c2-eth0.json", "c4-eth0.json"}, names)
	require.FileExists(t, filepath.Join(n.run, "other"))
}
