// SPDX-License-Identifier: Apache-2.0

// Command cyclonus runs test cases of Cyclonus on the cluster of KUBECONFIG: it
// creates policies, has nine pods in three namespaces connect to each other,
// and compares which connections succeed with what its own model says.
//
// It does what the command of Cyclonus does, cyclonus generate, except that one
// exec per pod makes all connections of that pod, not one exec for each
// connection. Cyclonus can do so, but its command has no flag for it.
//
//	cyclonus [-destination pod-ip|service-ip] [-wait 1] [-first 1] [-last 20] [-exclude TAG,...]
//
// After each test case it writes a summary in JSON of all until there. It fails
// if anything differs.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Pods that connect to each other: each name in each namespace.
var (
	namespaces = []string{"x", "y", "z"}
	pods       = []string{"a", "b", "c"}
	ports      = []int{80, 81}
	protocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
)

// podTimeout is how many seconds the pods may take to start, on a busy machine.
const podTimeout = 300

// Summary is a line of the output.
type Summary struct {
	Cases       int   // test cases that ran
	Steps       int   // probes of all pods, one after each change
	Connections int   // connections compared, without those of a pod to itself
	Different   int   // of those, other than the model says; also after a retry
	Retried     int   // steps that differed at first
	Failed      []int // numbers of the test cases that differ
	Seconds     int
}

func main() {
	var o options
	flag.StringVar(&o.destination, "destination", generator.ProbeModePodIP, "pod-ip or service-ip")
	flag.StringVar(&o.exclude, "exclude", "", "tags of test cases that are left out")
	flag.IntVar(&o.wait, "wait", 1, "seconds between a change and the probe")
	flag.IntVar(&o.first, "first", 1, "number of the first test case")
	flag.IntVar(&o.last, "last", 0, "number of the last test case; 0: of all")
	flag.Parse()
	summary, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cyclonus:", err)
		os.Exit(1)
	}
	if len(summary.Failed) > 0 {
		os.Exit(1)
	}
}

type options struct {
	destination, exclude string
	wait, first, last    int
}

func run(o options) (Summary, error) {
	var summary Summary
	start := time.Now()
	mode, err := generator.ParseProbeMode(o.destination)
	if err != nil {
		return summary, err
	}
	cluster, err := kube.NewKubernetesForContext("")
	if err != nil {
		return summary, err
	}
	resources, err := probe.NewDefaultResources(cluster, namespaces, pods, ports, protocols, nil,
		podTimeout, true, "")
	if err != nil {
		return summary, err
	}
	cases, err := generate(resources, o.exclude)
	if err != nil {
		return summary, err
	}
	interpreter := connectivity.NewInterpreter(cluster, resources, &connectivity.InterpreterConfig{
		ResetClusterBeforeTestCase:       true,
		VerifyClusterStateBeforeTestCase: true,
		KubeProbeRetries:                 1,
		PerturbationWaitSeconds:          o.wait,
		BatchJobs:                        true,
		// A pod reaches itself whatever policies say: those packets do not leave it.
		IgnoreLoopback: true,
	})
	printer := connectivity.Printer{IgnoreLoopback: true}
	for i, testCase := range cases {
		number := i + 1
		if number < o.first || o.last != 0 && number > o.last {
			continue
		}
		for _, step := range testCase.Steps {
			probeConfig := *step.Probe // several steps share one
			probeConfig.Mode = mode
			step.Probe = &probeConfig
		}
		fmt.Printf("%s case %d of %d\n", time.Now().Format(time.TimeOnly), number, len(cases))
		result := interpreter.ExecuteTestCase(testCase)
		for tries := 1; apierrors.IsConflict(result.Err) && tries < 5; tries++ {
			result = interpreter.ExecuteTestCase(testCase) // a kubelet has changed the pod meanwhile
		}
		if result.Err != nil {
			return summary, fmt.Errorf("case %d, %s: %w", number, testCase.Description, result.Err)
		}
		printer.PrintTestCaseResult(result)
		summary.add(number, result)
		summary.Seconds = int(time.Since(start).Seconds())
		text, err := json.Marshal(summary)
		if err != nil {
			return summary, err
		}
		fmt.Println(string(text))
	}
	return summary, nil
}

// generate returns the test cases of Cyclonus without those of the excluded tags.
func generate(resources *probe.Resources, exclude string) ([]*generator.TestCase, error) {
	var tags []string
	if exclude != "" {
		tags = strings.Split(exclude, ",")
	}
	if err := generator.ValidateTags(tags); err != nil {
		return nil, err
	}
	last, err := resources.GetPod("z", "c") // policies with addresses name its address
	if err != nil {
		return nil, err
	}
	return generator.NewTestCaseGenerator(true, last.IP, namespaces, nil, tags).GenerateTestCases(),
		nil
}

func (s *Summary) add(number int, result *connectivity.Result) {
	s.Cases++
	for _, step := range result.Steps {
		s.Steps++
		if len(step.KubeProbes) > 1 {
			s.Retried++
		}
		for _, counts := range step.LastComparison().ValueCountsByProtocol(true) {
			s.Connections += counts[connectivity.SameComparison] + counts[connectivity.DifferentComparison]
			s.Different += counts[connectivity.DifferentComparison]
		}
	}
	if !result.Passed(true) {
		s.Failed = append(s.Failed, number)
	}
}
