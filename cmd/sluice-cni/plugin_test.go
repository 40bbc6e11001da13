// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables/cnifile"
)

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
