// SPDX-License-Identifier: Apache-2.0

//go:build cluster && full

package main

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
)

// suite is a part of Kubernetes' own end-to-end tests.
type suite struct {
	name  string
	focus string // regular expression of names
	skip  []string
	tests int // that run: fewer are a failure, too
}

// notHere are tests of what this cluster does not have.
var notHere = []string{
	`\[Feature:SCTPConnectivity\]`,     // no SCTP in the kernel
	`\[Feature:IPv6DualStack\]`,        // IPv4 only
	`\[Feature:Networking-IPv`,         // no Internet
	`\[Feature:Networking-DNS\]`,       // no names of the Internet
	`\[Feature:LoadBalancer\]`,         // no load balancer
	`\[Disruptive\]`, `\[Privileged\]`, // SSH to nodes, images that cannot be made here
}

var suites = []suite{
	{name: "Netpol", focus: `\[sig-network\] Netpol`, tests: 47},
	{name: "Granular", focus: `Granular Checks`, tests: 21},
	// Services, among them externalTrafficPolicy, NodePort and hostNetwork pods.
	{name: "Services", focus: `\[sig-network\] (Services|HostPort|Conntrack)`, tests: 56},
}

// suiteProcesses is how many tests of a suite run at once.
const suiteProcesses = "3"

// report is a report of Ginkgo.
type report struct {
	Seconds float64 `xml:"time,attr"`
	Suites  []struct {
		Tests []struct {
			Name   string `xml:"name,attr"`
			Status string `xml:"status,attr"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// run runs the suite. The log of a test is among those of the cluster.
func (s suite) run(t *testing.T) {
	logs := filepath.Join(options.Bin, "cluster", "log", s.name)
	require.NoError(t, os.MkdirAll(logs, 0o755))
	log, err := os.Create(filepath.Join(logs, "ginkgo.log"))
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), filepath.Join(options.Bin, "ginkgo"),
		"--procs="+suiteProcesses, "--no-color", "--timeout=3h", "--poll-progress-after=10m",
		"--output-dir="+logs, "--junit-report=junit.xml",
		"--focus="+s.focus, "--skip="+strings.Join(append(notHere, s.skip...), "|"),
		filepath.Join(options.Bin, "e2e.test"), "--",
		"-kubeconfig="+running.Kubeconfig(), "-provider=local", "-num-nodes=3",
		"-disable-log-dump", "-dump-logs-on-failure=false", "-report-dir="+logs)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stdout, cmd.Stderr = log, log
	runErr := cmd.Run() // fails if a test does; the report has which

	var results report
	text, err := os.ReadFile(filepath.Join(logs, "junit.xml"))
	require.NoError(t, err, "%v: see %s", runErr, log.Name())
	require.NoError(t, xml.Unmarshal(text, &results))
	counts := map[string]int{}
	for _, suite := range results.Suites {
		for _, test := range suite.Tests {
			if !strings.HasPrefix(test.Name, "[It]") {
				continue // what runs before and after all tests
			}
			counts[test.Status]++
			if test.Status != "passed" && test.Status != "skipped" {
				t.Errorf("%s: %s; see %s", test.Name, test.Status, log.Name())
			}
		}
	}
	t.Logf("%s of Kubernetes, kube-proxy %s, CNI %s: %d of %d passed in %.0f s",
		s.name, options.Proxy, options.CNI, counts["passed"], s.tests, results.Seconds)
	assert.Equal(t, s.tests, counts["passed"], "tests that passed")
	assert.NoError(t, runErr)
}

// busyboxImage is another image that tests use.
const busyboxImage = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"

// importTools gives the nodes an image of agnhost as upstream's is: with a
// shell, curl, netcat and wget.
func importTools(t *testing.T) {
	busybox := filepath.Join(options.Bin, "busybox", "bin", "busybox")
	wgetrc := filepath.Join(t.TempDir(), "wgetrc")
	require.NoError(t, os.WriteFile(wgetrc, []byte("tries = 1\n"), 0o644)) // as busybox does
	image := kubernetes.Image{
		Names: []string{kubernetes.AgnhostImage, busyboxImage},
		Files: map[string]string{
			"agnhost":     filepath.Join(options.Bin, "agnhost"),
			"bin/busybox": busybox,
			"bin/sh":      "/bin/dash", // that of busybox prefers its own commands, such as nc
			"bin/curl":    "/usr/bin/curl",
			"bin/nc":      "/bin/nc.openbsd",
			"bin/wget":    "/usr/bin/wget", // that of Debian's busybox crashes with -T
			"etc/wgetrc":  wgetrc,
		},
		Links:      map[string]string{},
		Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{kubernetes.SearchPath},
	}
	for _, tool := range strings.Fields(run(t, busybox, "--list")) {
		if path := "bin/" + tool; image.Files[path] == "" {
			image.Links[path] = "/bin/busybox"
		}
	}
	for _, tool := range []string{"bin/busybox", "bin/sh", "bin/curl", "bin/nc", "bin/wget"} {
		for _, word := range strings.Fields(run(t, "ldd", image.Files[tool])) {
			if filepath.IsAbs(word) { // a library, or the loader
				image.Files[strings.TrimPrefix(word, "/")] = word
			}
		}
	}
	require.NoError(t, running.Import(t.Context(), image))
}
