// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// statusManifests are policies that are in force, lose to that, and are wrong.
const statusManifests = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: web}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [203.0.113.0/24]
  egressGateway: {nodeSelector: {matchLabels: {egress: local}}, egressIP: 192.168.7.50}
`

const loserManifest = `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: web-too}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [203.0.113.0/24, 198.51.100.0/24]
  egressGateway: {nodeSelector: {matchLabels: {egress: local}}, egressIP: 192.168.7.50}
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: wrong}
spec:
  selectors: [{podSelector: {matchLabels: {app: db}}}]
  destinationCIDRs: [203.0.113.0/24, nonsense]
  egressGateway: {nodeSelector: {matchLabels: {egress: nobody}}}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: right, namespace: prod}
spec:
  endpointSelector: {matchLabels: {app: db}}
  ingress: [{fromEndpoints: [{matchLabels: {app: web}}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: wrong, namespace: prod}
spec:
  endpointSelector: {matchLabels: {app: nobody}}
  ingress: [{fromCIDR: [nonsense]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: wrong, namespace: prod}
spec:
  podSelector: {matchLabels: {app: nobody}}
  ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80, protocol: TCP}]}]
`

// policyStatus is the status of a policy as a user reads it.
type policyStatus struct {
	ObservedGeneration int64
	Conditions         []metav1.Condition
	Gateways           []struct {
		Node      string
		EgressIPs []string
	}
	Nodes   struct{ Programmed, Total int }
	Summary struct{ Nodes, Gateways string }
}

func (s policyStatus) condition(name string) metav1.Condition {
	for _, c := range s.Conditions {
		if c.Type == name {
			return c
		}
	}
	return metav1.Condition{}
}

var networkPolicyResource = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnetworkpolicies"}

// statusOf reads the status of a policy.
func statusOf(t testing.TB, c *cluster.Cluster, resource schema.GroupVersionResource, namespace, name string) (s policyStatus, version string) {
	t.Helper()
	object, err := c.Dynamic().Resource(resource).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	data, err := json.Marshal(object.Object["status"])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &s))
	return s, object.GetResourceVersion()
}

// awaitCondition waits until a policy has a condition with a status and a reason.
func awaitCondition(a *agent, c *cluster.Cluster, resource schema.GroupVersionResource, namespace, name, condition string, status metav1.ConditionStatus, reason string) (s policyStatus) {
	a.t.Helper()
	a.eventually(fmt.Sprintf("%s is %s %s", name, condition, status), func() error {
		s, _ = statusOf(a.t, c, resource, namespace, name)
		if is := s.condition(condition); is.Status != status || is.Reason != reason {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	return s
}

// columnsOf returns what kubectl get shows of an egress policy.
func columnsOf(t *testing.T, c *cluster.Cluster, name string) []any {
	t.Helper()
	data, err := c.Client().CoreV1().RESTClient().Get().AbsPath("/apis/cilium.io/v2/ciliumegressgatewaypolicies/"+name).
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").DoRaw(t.Context())
	require.NoError(t, err)
	var table metav1.Table
	require.NoError(t, json.Unmarshal(data, &table))
	require.Len(t, table.Rows, 1)
	return table.Rows[0].Cells
}

// statusAgents starts agents of three nodes, and returns them by the node.
func statusAgents(t *testing.T, c *cluster.Cluster) map[string]*agent {
	agents := map[string]*agent{}
	for _, node := range []string{localNode, "node-2", "node-3"} {
		flags := []string{"--bpf=memory", "--node-name=" + node}
		if node == "node-3" {
			flags = append(flags, "--map-size-egress=4")
		}
		agents[node] = newAgent(t, c, flags...)
		agents[node].start()
	}
	for _, a := range agents {
		a.awaitReady()
	}
	return agents
}

// statusOperators starts two operators with the rights that deploy/ gives, by their names. They
// are processes like agents.
func statusOperators(t *testing.T, c *cluster.Cluster) map[string]*agent {
	operators := map[string]*agent{}
	for _, name := range []string{"operator-1", "operator-2"} {
		operators[name] = newOperator(t, c.Kubeconfig("sluice-operator"), "--identity="+name)
		operators[name].start()
	}
	return operators
}

// leader returns the operator that leads, and waits until there is one of these.
func leader(c *cluster.Cluster, a *agent, operators map[string]*agent) (holder string) {
	a.t.Helper()
	a.eventually("an operator leads", func() error {
		lease, err := c.Client().CoordinationV1().Leases(cluster.Namespace).Get(a.t.Context(), "sluice", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if holder = *cmp.Or(lease.Spec.HolderIdentity, new(string)); operators[holder] == nil {
			return fmt.Errorf("%q does", holder)
		}
		return nil
	})
	return holder
}

// awaitEvent waits for an Event about a policy.
func awaitEvent(a *agent, c *cluster.Cluster, kind, name, reason, text string) {
	a.t.Helper()
	a.eventually(fmt.Sprintf("an Event %s about %s", reason, name), func() error {
		events, err := c.Client().CoreV1().Events("").List(a.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			seen = append(seen, fmt.Sprintf("%s %s: %s %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message))
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, text) {
				if e.Type != corev1.EventTypeWarning {
					return fmt.Errorf("it is %s", e.Type)
				}
				return nil
			}
		}
		return fmt.Errorf("there are %q", seen)
	})
}

// TestObjectStatus: objects say the status of policies on three nodes, and go on to after
// the operator that leads is killed; at rest next to nothing is asked of the API server.
func TestObjectStatus(t *testing.T) {
	t.Parallel()
	const egressKind = "CiliumEgressGatewayPolicy"
	c := startCluster(t)
	populate(c)
	c.Apply(statusManifests)
	agents := statusAgents(t, c)
	operators := statusOperators(t, c)
	a := agents[localNode]

	t.Run("a policy in force", func(t *testing.T) {
		a := a.within(t)
		s := awaitCondition(a, c, policyResource, "", "web", "Programmed", metav1.ConditionTrue, "Programmed")
		require.Equal(t, metav1.ConditionTrue, s.condition("Accepted").Status)
		require.Equal(t, metav1.ConditionFalse, s.condition("Conflicted").Status)
		require.EqualValues(t, 1, s.ObservedGeneration)
		require.EqualValues(t, 1, s.condition("Programmed").ObservedGeneration)
		require.Len(t, s.Gateways, 1)
		require.Equal(t, localNode, s.Gateways[0].Node)
		a.eventually("the gateway's address", func() error {
			if s, _ = statusOf(t, c, policyResource, "", "web"); len(s.Gateways[0].EgressIPs) == 0 || s.Nodes.Programmed != 3 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		require.Contains(t, s.Gateways[0].EgressIPs, egressIP.String())
		require.Equal(t, "3/3", s.Summary.Nodes)
		require.Equal(t, localNode, s.Summary.Gateways)
		require.Equal(t, []any{"web", "True", "True", "3/3", localNode}, columnsOf(t, c, "web")[:5])
	})
	t.Run("policies that are wrong or lose", func(t *testing.T) {
		a := a.within(t)
		c.Apply(loserManifest)
		s := awaitCondition(a, c, policyResource, "", "wrong", "Accepted", metav1.ConditionFalse, "Invalid")
		require.Contains(t, s.condition("Accepted").Message, "spec.destinationCIDRs[1]")
		awaitEvent(a, c, egressKind, "wrong", "Invalid", "spec.destinationCIDRs[1]")
		awaitCondition(a, c, policyResource, "", "wrong", "Programmed", metav1.ConditionFalse, "NoGateway")
		awaitEvent(a, c, egressKind, "wrong", "NoGateway", "no node matches")

		s = awaitCondition(a, c, policyResource, "", "web-too", "Conflicted", metav1.ConditionTrue, "Overlap")
		require.Equal(t, "203.0.113.0/24 goes to policy web", s.condition("Conflicted").Message)
		s, _ = statusOf(t, c, policyResource, "", "web")
		require.Equal(t, metav1.ConditionFalse, s.condition("Conflicted").Status, "who wins has no conflict")

		s = awaitCondition(a, c, networkPolicyResource, "prod", "right", "Valid", metav1.ConditionTrue, "")
		require.Equal(t, "Policy validation succeeded", s.condition("Valid").Message)
		awaitCondition(a, c, networkPolicyResource, "prod", "wrong", "Valid", metav1.ConditionFalse, "Invalid")
		awaitEvent(a, c, "CiliumNetworkPolicy", "wrong", "Invalid", "fromCIDR")
	})
	t.Run("the kernel of a node refuses a part", func(t *testing.T) {
		a := a.within(t)
		c.Apply(strings.NewReplacer("name: web}", "name: many}", "app: web", "app: job", "203.0.113.0/24]",
			"192.0.2.0/28, 192.0.2.16/28, 192.0.2.32/28, 192.0.2.48/28, 192.0.2.64/28, 192.0.2.80/28]").Replace(statusManifests))
		s := awaitCondition(a, c, policyResource, "", "many", "Programmed", metav1.ConditionFalse, "Failed")
		require.Contains(t, s.condition("Programmed").Message, "node-3: ")
		awaitEvent(a, c, egressKind, "many", "Failed", "node-3: ")
		require.NoError(t, c.Dynamic().Resource(policyResource).Delete(t.Context(), "many", metav1.DeleteOptions{}))
	})
	t.Run("the operator that leads is killed", func(t *testing.T) {
		a := a.within(t)
		first := leader(c, a, operators)
		operators[first].kill()
		rest := map[string]*agent{}
		for name, other := range operators {
			if name != first {
				rest[name] = other
			}
		}
		before, _ := statusOf(t, c, policyResource, "", "web-too")
		agents["node-2"].kill()

		// Without any that leads a policy comes into force all the same. The other goes on, and says
		// whose agent has nothing to tell.
		c.Apply(strings.ReplaceAll(strings.ReplaceAll(statusManifests, "name: web}", "name: late}"), "app: web", "app: late"))
		require.NotEqual(t, first, leader(c, a, rest))
		s := awaitCondition(a, c, policyResource, "", "late", "Programmed",
			metav1.ConditionUnknown, "Pending")
		require.Equal(t, metav1.ConditionTrue, s.condition("Accepted").Status)
		a.eventually("all but the dead agent tell", func() error {
			if s, _ = statusOf(t, c, policyResource, "", "late"); s.Summary.Nodes != "2/3" {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		agents["node-2"].start()
		agents["node-2"].awaitReady()
		awaitCondition(a, c, policyResource, "", "late", "Programmed", metav1.ConditionTrue, "Programmed")
		after, _ := statusOf(t, c, policyResource, "", "web-too")
		require.Equal(t, before.Conditions, after.Conditions, "what was right stays, with its times")
		operators[first].start()
	})
	t.Run("at rest", func(t *testing.T) { testAtRest(t, c, agents, operators) })
}

// restFor is for how long requests at rest are counted.
const restFor = time.Minute

// testAtRest counts the requests of agents and operators that have nothing to tell.
func testAtRest(t *testing.T, c *cluster.Cluster, agents, operators map[string]*agent) {
	leader(c, agents[localNode].within(t), operators)
	versions := func() (all []string) {
		for _, name := range []string{"web-too", "wrong"} {
			_, version := statusOf(t, c, policyResource, "", name)
			all = append(all, name+" "+version)
		}
		return all
	}
	// The last numbers are told after a minute.
	var before, last map[string]float64
	var was []string
	a := agents[localNode].within(t)
	a.eventually("all is told", func() error {
		was, last = versions(), statusRequests(t, c)
		time.Sleep(10 * time.Second)
		before = statusRequests(t, c)
		for _, what := range []string{"PATCH nodereports", "PATCH ciliumegressgatewaypolicies", "POST events", "PATCH events"} {
			if before[what] != last[what] {
				return fmt.Errorf("%s: %v, then %v", what, last[what], before[what])
			}
		}
		return nil
	})
	time.Sleep(restFor)
	after := statusRequests(t, c)
	require.Equal(t, was, versions())
	total := 0.0
	for what, n := range after {
		if n -= before[what]; n > 0 {
			t.Logf("%s: %v in %s", what, n, restFor)
		}
		total += after[what] - before[what]
		if !strings.HasSuffix(what, " leases") {
			require.Equal(t, before[what], after[what], what)
		}
	}
	// The operator that leads renews every 2 s, and the other looks every 2 s at most. The API
	// server renews its own lease every 10 s, and reads it before.
	require.LessOrEqual(t, total, 30.0+30+12)
}

// statusRequests returns how many requests there were of what agents write, and read
// for it, by verb and resource. The API server's own lease is among them.
func statusRequests(t *testing.T, c *cluster.Cluster) map[string]float64 {
	t.Helper()
	body, err := c.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	require.NoError(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		reads := slices.Contains([]string{"GET", "LIST", "WATCH"}, labels["verb"])
		if own := slices.Contains([]string{"leases", "nodereports", "events"}, labels["resource"]); own && labels["verb"] != "LIST" || !reads {
			counts[labels["verb"]+" "+labels["resource"]] += m.Counter.GetValue()
		}
	}
	return counts
}
