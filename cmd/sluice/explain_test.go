// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/tables/explain"
	"github.com/sluice-net/sluice/testdata/await"
)

const policyManifests = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}
status: {phase: Running, podIPs: [{ip: 10.1.0.5}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {nodeName: node-2, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.2.0.5}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop, generation: 3}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: broken, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: client}}]
    toPorts: [{ports: [{port: "99999"}]}]
---
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: elsewhere}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress: [{}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: longest}}
  egress: [{}]
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: bank}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [198.51.100.0/24]
  egressGateway: {nodeSelector: {matchLabels: {egress: "yes"}}}
`

// waitBriefly waits until its timeout, long enough for the agent to answer. It returns for how long.
func waitBriefly(t *testing.T, args ...string) (r result, timeout time.Duration) {
	for timeout = 100 * time.Millisecond; ; timeout *= 2 {
		r = sluice(t, append([]string{"wait", "policy", "--timeout=" + timeout.String()}, args...)...)
		if !strings.Contains(r.stderr, "the agent has not answered") {
			return r, timeout
		}
	}
}

// What an agent of another version does not find may yet be there.
func TestWaitWithAnotherVersion(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			fmt.Fprint(w, `{"version":"v0"}`)
		} // and of the policy nothing
	}))
	defer agent.Close()
	r, _ := waitBriefly(t, "shop/web", "--server="+agent.URL)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "it is of another version than this command: sluice v0")
}

// What is not answered in time says nothing of the policy.
func TestWaitWithoutAnAnswer(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			json.NewEncoder(w).Encode(version.Get())
			return
		}
		io.Copy(io.Discard, r.Body) // else it is not noticed that the client has gone
		<-r.Context().Done()
	}))
	defer agent.Close()
	r := sluice(t, "wait", "policy", "shop/web", "--timeout=100ms", "--server="+agent.URL)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "policy shop/web is not in force after 100ms: the agent has not answered")
}

func TestExplainAndWait(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(policyManifests), 0o600))
	startAgent(t, "--source=files", "--manifests="+dir, "--audit-interval=0s")

	r := sluice(t, "wait", "policy", "shop/web", "--generation", "3")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Regexp(t, `^NetworkPolicy/shop/web: in force, (\d+) of (\d+) label sets\n$`, r.stdout)
	r = sluice(t, "wait", "policy", "NetworkPolicy/shop/web")
	require.Equal(t, exitOK, r.code, r.stderr)
	r = sluice(t, "wait", "policy", "web")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "NetworkPolicy/shop/web: in force")
	r = sluice(t, "wait", "policy", "CiliumClusterwideNetworkPolicy/elsewhere")
	require.Equal(t, exitOK, r.code, r.stderr)
	r = sluice(t, "wait", "policy", "elsewhere")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "not here")
	r = sluice(t, "wait", "policy", "CiliumNetworkPolicy/shop/broken")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "policy CiliumNetworkPolicy/shop/broken is in force in part: invalid, ")
	require.Equal(t, exitError, sluice(t, "wait", "policy", "nobody", "--timeout=100ms").code)
	r, timeout := waitBriefly(t, "shop/none")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "policy shop/none is not in force after "+timeout.String()+": there is no such policy")
	r, _ = waitBriefly(t, "shop/web", "--generation=4")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "the agent has generation 3")
	for _, bad := range []string{"a/b/c/d", "Pod/shop/web", "shop/", ""} {
		require.Equal(t, exitUsage, sluice(t, "wait", "policy", bad).code, bad)
	}
	require.Equal(t, exitUsage, sluice(t, "wait", "policy", "shop/web", "--timeout=-1s").code)

	for _, row := range strings.Split(sluice(t, "get", "network-policies").stdout, "\n") {
		for _, cell := range strings.Split(row, "   ") {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSpace(cell)), longestCell)
		}
	}
	require.Contains(t, sluice(t, "get", "network-policies", "-o", "wide").stdout, strings.Repeat("long", 40))

	r = sluice(t, "get", "network-policies")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Regexp(t, `(?m)^NetworkPolicy +shop/web +in force +(\d+)/(\d+) `, r.stdout)
	require.Regexp(t, `(?m)^CiliumNetworkPolicy +shop/broken +invalid `, r.stdout)

	t.Run("policy", testExplainPolicy)
	t.Run("egress", testExplainEgress)

	r = sluice(t, "rules", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	var report api.RulesReport
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report))
	require.False(t, report.Counted)
	require.NotEmpty(t, report.Rules)
	r = sluice(t, "rules")
	require.Contains(t, r.stderr, "no programs are loaded: nothing is counted")
	require.Regexp(t, `(?m)^0 +0 +.*NetworkPolicy/shop/web spec.ingress\[0\]`, r.stdout)

	t.Run("changed", func(t *testing.T) {
		text := strings.ReplaceAll(strings.Replace(policyManifests, "generation: 3", "generation: 4", 1), "port: 80}]\n---", "port: 81}]\n---")
		require.NotEqual(t, policyManifests, text)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(text), 0o600))
		r := sluice(t, "wait", "policy", "shop/web", "--generation=4")
		require.Equal(t, exitOK, r.code, r.stderr)
		r = sluice(t, "explain", "policy", "shop/client", "shop/web", "81")
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Contains(t, r.stdout, "ALLOWED HERE: ")
		r = sluice(t, "explain", "policy", "shop/client", "shop/web", "80")
		require.Contains(t, r.stdout, "DENIED: ")
	})

	t.Run("difference", func(t *testing.T) {
		var r result
		await.True(t, func() bool {
			r = sluice(t, "shell", "map/corrupt", "sluice_pods", "remove")
			return r.code != exitNoAgent
		}, "its job starts last")
		require.Equal(t, exitOK, r.code, r.stderr)
		r = sluice(t, "explain", "policy", "shop/client", "shop/web", "81")
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stdout, "DIFFERS: ingress: by the tables allowed ")
		require.Contains(t, r.stderr, "the maps differ from the tables:\n  ingress: by the tables allowed ")
		r = sluice(t, "explain", "policy", "shop/client", "shop/web", "81", "-o", "json")
		require.Equal(t, exitError, r.code)
		var answer explain.Policy
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &answer))
		require.NotEmpty(t, answer.Differences)
	})
}

var numbers = regexp.MustCompile(`(subject |member |class |group |bucket |ruleset +|ruleset=|class=|set=|cookie=|group=)[1-9]\d*`)

// shown is an answer without numbers that are given out.
func shown(r result) string { return numbers.ReplaceAllString(r.stdout, "${1}N") }

func testExplainPolicy(t *testing.T) {
	r := sluice(t, "explain", "policy", "shop/client", "shop/web", "http")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, `ALLOWED HERE: allowed by rule NetworkPolicy/shop/web spec.ingress[0]
  from      shop/client = 10.2.0.5 on node-2
            member N (pods), class N: pods(app=client,io.kubernetes.pod.namespace=shop)
  to        shop/web = 10.1.0.5 on node-1
            subject N, ruleset N: CiliumNetworkPolicy/shop/broken, NetworkPolicy/shop/web
            member N (pods), class N: no selector
  traffic   80/tcp
  ingress   allowed: allowed by rule
    rule      NetworkPolicy/shop/web spec.ingress[0]: allow
    entry     sluice_policy: ruleset=N class=N ingress -> set=N
    entry     sluice_verdicts: set=N protocol=6 port=80/16 -> allow cookie=N
  ask       node-2: what its pod sends or lets in is judged there
  maps      in memory: the same
`, shown(r))

	r = sluice(t, "explain", "policy", "world", "shop/web", "80")
	require.Equal(t, exitOK, r.code, "denied is an answer: %s", r.stderr)
	require.Equal(t, `DENIED: default deny CiliumNetworkPolicy/shop/broken spec.ingress, NetworkPolicy/shop/web spec.ingress
  from      world = 0.0.0.0/0
            member N (world), class N: no selector
  to        shop/web = 10.1.0.5 on node-1
            subject N, ruleset N: CiliumNetworkPolicy/shop/broken, NetworkPolicy/shop/web
            member N (pods), class N: no selector
  traffic   80/tcp
  ingress   denied: default deny
    rule      CiliumNetworkPolicy/shop/broken spec.ingress: default deny
    rule      NetworkPolicy/shop/web spec.ingress: default deny
    entry     sluice_policy: ruleset=N class=0 ingress -> set=N
    entry     sluice_verdicts: set=N any -> default deny cookie=N
  maps      in memory: the same
`, shown(r))

	r = sluice(t, "explain", "policy", "host", "shop/web", "80", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	var answer map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &answer))
	require.Equal(t, "allowed", answer["verdict"])
	require.Equal(t, "host reaches its pods", answer["reason"])
	require.Equal(t, "allowed", answer["kernel"].(map[string]any)["verdict"])
	require.Equal(t, "memory", answer["kernel"].(map[string]any)["backend"])

	r = sluice(t, "explain", "policy", "shop/none", "shop/web", "80")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "from: there is no pod shop/none")
	require.Equal(t, exitUsage, sluice(t, "explain", "policy", "shop/client").code)
}

func testExplainEgress(t *testing.T) {
	r := sluice(t, "explain", "egress", "shop/web", "198.51.100.10")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, `DENIED: no egress gateway bank (198.51.100.0/24)
  because   no node matches
  from      shop/web = 10.1.0.5 on node-1
            subject N, ruleset N: CiliumNetworkPolicy/shop/broken, NetworkPolicy/shop/web
            member N (pods), class N: no selector
  to        198.51.100.10
            member N (world), class N: no selector
  ruleset   N of subject N: bank
  policy    bank: redirect 198.51.100.0/24
  gateways  group N, bucket N
  entry     sluice_egress: ruleset=N 198.51.100.0/24 -> group=N
  maps      in memory: the same
`, shown(r))
	r = sluice(t, "explain", "egress", "shop/web", "8.8.8.8", "-o", "yaml")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "\nreason: passed\n")
}
