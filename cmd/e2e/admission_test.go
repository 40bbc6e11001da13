// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
	"github.com/sluice-net/sluice/reconcilers/announce"
	"github.com/sluice-net/sluice/reconcilers/nodereport"
)

var (
	nodesResource  = corev1.SchemeGroupVersion.WithResource("nodes")
	eventsResource = corev1.SchemeGroupVersion.WithResource("events")
)

// write is a patch, of which nothing stays.
type write struct {
	resource schema.GroupVersionResource
	name     string
	patch    string // an applied object, of a Node a merge patch or a JSON patch
}

func (w write) as(t *testing.T, client dynamic.Interface) error {
	options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	kind := types.MergePatchType
	if strings.HasPrefix(w.patch, "[") {
		kind = types.JSONPatchType
	}
	if w.resource != nodesResource {
		force := true
		kind, options.FieldManager, options.Force = types.ApplyPatchType, "test", &force
	}
	into := client.Resource(w.resource)
	if w.resource == eventsResource {
		into := into.Namespace(metav1.NamespaceDefault)
		_, err := into.Patch(t.Context(), w.name, kind, []byte(w.patch), options)
		return err
	}
	if w.resource == announce.Resource {
		_, err := into.Namespace(cluster.Namespace).Patch(t.Context(), w.name, kind, []byte(w.patch),
			options)
		return err
	}
	_, err := into.Patch(t.Context(), w.name, kind, []byte(w.patch), options)
	return err
}

// sliceOf is an EndpointSlice with labels and endpoints in YAML.
func sliceOf(name, labels, endpoints string) write {
	return write{announce.Resource, name,
		fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, "+
			"metadata: {name: %s, labels: {%s}}, addressType: IPv4, ports: [], endpoints: [%s]}", name,
			labels, endpoints)}
}

func reportOf(node string) write {
	return write{nodereport.Resource, node,
		fmt.Sprintf("{apiVersion: sluice.io/v1alpha1, kind: NodeReport, "+
			"metadata: {name: %s}, status: {agentVersion: v1}}", node)}
}

// eventOf is an Event about an object.
func eventOf(kind, name string) write {
	return write{eventsResource, "tampered", fmt.Sprintf("{apiVersion: v1, kind: Event, "+
		"metadata: {name: tampered}, reason: Tampered, involvedObject: {kind: %s, name: %s}}", kind, name)}
}

func changeOf(node, patch string) write { return write{nodesResource, node, patch} }

// taints are those of each node. The agent removes the first.
const taints = `{"key": "sluice.net/agent-not-ready", "effect": "NoSchedule"}, ` + taintLeft
const taintLeft = `{"key": "dedicated", "effect": "NoSchedule", "value": "gateways"}`

const (
	here    = "{addresses: [10.1.0.7], nodeName: node-1}"
	there   = "{addresses: [10.1.0.8], nodeName: node-2}"
	nowhere = "{addresses: [10.1.0.9]}"
)

// own is what an agent of node-1 writes.
var own = map[string]write{
	"pods":    sliceOf("sluice-node-1-ipv4", "", here+","+here),
	"no pods": sliceOf("sluice-node-1-ipv6", "endpointslice.kubernetes.io/managed-by: sluice.net", ""),
	"report":  reportOf("node-1"),
	"taint": changeOf("node-1", `[{"op": "test", "path": "/spec/taints", "value": [`+taints+`]},
		{"op": "replace", "path": "/spec/taints", "value": [`+taintLeft+`]}]`),
	"nothing else": changeOf("node-1", `{}`),
	"event":        eventOf("Node", "node-1"),
}

// foreign is what it may not write, with why.
var foreign = map[string]struct {
	write
	message string
}{
	"slice of another node": {sliceOf("sluice-node-2-ipv4", "", here),
		"node-1's agent may not write the EndpointSlice sluice-node-2-ipv4"},
	"slice of no node":      {sliceOf("web", "", here), "may not write the EndpointSlice web"},
	"pod of another node":   {sliceOf("sluice-node-1-ipv4", "", here+","+there), "may not announce addresses of other nodes"},
	"pod of no node":        {sliceOf("sluice-node-1-ipv4", "", nowhere), "may not announce addresses of other nodes"},
	"backend of a service":  {sliceOf("sluice-node-1-ipv4", "kubernetes.io/service-name: web", here), "may not write an EndpointSlice of a service"},
	"report of another one": {reportOf("node-2"), "node-1's agent may not write the NodeReport node-2"},
	"event of another node": {eventOf("Node", "node-2"), "node-1's agent may not write Events but about its Node"},
	"event of a policy":     {eventOf("CiliumEgressGatewayPolicy", "web"), "may not write Events but about its Node"},
	"taint of another node": {changeOf("node-2", `{"spec": {"taints": [`+taintLeft+`]}}`),
		"node-1's agent may not write the Node node-2"},
	"label":            {changeOf("node-1", `{"metadata": {"labels": {"zone": "b"}}}`), "may not change anything of its Node but taints"},
	"label removed":    {changeOf("node-1", `{"metadata": {"labels": null}}`), "may not change anything of its Node but taints"},
	"annotation":       {changeOf("node-1", `{"metadata": {"annotations": {"a": "b"}}}`), "may not change anything of its Node but taints"},
	"finalizer":        {changeOf("node-1", `{"metadata": {"finalizers": ["a.example/b"]}}`), "may not change anything of its Node but taints"},
	"field added":      {changeOf("node-1", `{"spec": {"unschedulable": true}}`), "may not change anything of its Node but taints"},
	"taint added":      {changeOf("node-1", `{"spec": {"taints": [`+taints+`, {"key": "a", "effect": "NoExecute"}]}}`), "may not change taints"},
	"taint changed":    {changeOf("node-1", `{"spec": {"taints": [`+strings.ReplaceAll(taints, "gateways", "x")+`]}}`), "may not change taints"},
	"all taints":       {changeOf("node-1", `{"spec": {"taints": null}}`), "may not change taints but to remove sluice.net/agent-not-ready"},
	"label with taint": {changeOf("node-1", `{"metadata": {"labels": {"zone": "b"}}, "spec": {"taints": [`+taintLeft+`]}}`), "may not change anything"},
}

// TestAdmissionPolicy: an agent writes what is of its node, and nothing of others,
// though all have one service account.
func TestAdmissionPolicy(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for _, node := range []string{localNode, "node-2"} {
		c.CreateNode(cluster.Node{Name: node, Labels: map[string]string{"zone": "a"}})
		_, err := c.Client().CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
			[]byte(`{"spec": {"taints": [`+taints+`]}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	client := func(config *rest.Config) dynamic.Interface {
		http, err := rest.HTTPClientFor(config)
		require.NoError(t, err)
		t.Cleanup(http.CloseIdleConnections)
		client, err := dynamic.NewForConfigAndClient(config, http)
		require.NoError(t, err)
		return client
	}
	ofFile := func(kubeconfig string) dynamic.Interface {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		require.NoError(t, err)
		return client(config)
	}
	kubeconfig := c.KubeconfigOn(localNode, "sluice")
	first, unbound := ofFile(kubeconfig), ofFile(c.Kubeconfig("sluice"))
	for name, w := range foreign {
		require.NoError(t, w.as(t, first), "RBAC refuses nothing of this: %s", name)
	}

	c.ApplyFrom("admission")
	runDir := t.TempDir()
	a := newAgentAs(t, kubeconfig, "--bpf=memory", "--cni-plugin", "--cni-run-dir="+runDir,
		"--cni-conf-dir="+filepath.Join(t.TempDir(), "conf"),
		"--cni-bin-dir="+filepath.Join(t.TempDir(), "bin"))
	a.eventually("the policy is in force", func() error {
		if reportOf("node-2").as(t, first) == nil {
			return errors.New("the report of another node is written")
		}
		return nil
	})
	for name, w := range own {
		require.NoError(t, w.as(t, first), name)
		err := w.as(t, unbound)
		require.True(t, apierrors.IsInvalid(err) || apierrors.IsForbidden(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "only with the token of a pod that is bound to a node", name)
	}
	for name, w := range foreign {
		require.ErrorContains(t, w.as(t, first), w.message, name)
	}

	// Others write as before, also who is impersonated, and the node's own is that of
	// another agent.
	impersonated := c.Admin()
	impersonated.Impersonate = rest.ImpersonationConfig{UserName: "alice",
		Groups: []string{"system:masters"}}
	for name, w := range foreign {
		require.NoError(t, w.as(t, client(c.Admin())), name)
		require.NoError(t, w.as(t, client(impersonated)), name)
	}
	require.NoError(t, reportOf("node-2").as(t, ofFile(c.KubeconfigOn("node-2", "sluice"))))

	c.CreateNamespace("prod", nil)
	c.Apply(announcePolicy)
	c.CreatePod(cluster.Pod{Namespace: "prod", Name: "web", Labels: map[string]string{"app": "web"},
		Node: localNode})
	a.start()
	a.awaitReady()
	attach(t, runDir, "web", "10.1.0.7")
	a.eventually("the agent has reported, and announces its pod", func() error {
		_, noReport := c.Dynamic().Resource(nodereport.Resource).Get(t.Context(), localNode,
			metav1.GetOptions{})
		_, noSlice := c.Dynamic().Resource(announce.Resource).Namespace(cluster.Namespace).
			Get(t.Context(), "sluice-node-1-ipv4", metav1.GetOptions{})
		return errors.Join(noReport, noSlice)
	})
}
