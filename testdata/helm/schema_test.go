// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// A value that cannot be meant is refused before anything is applied, with its name.
func TestBadValues(t *testing.T) {
	c, err := loadChart(deployDir)
	require.NoError(t, err)
	for values, message := range map[string]string{
		`imagee: {}`:                                     "additional properties 'imagee' not allowed",
		`image: {tags: v1}`:                              "at '/image': additional properties 'tags' not allowed",
		`image: {repository: ""}`:                        "at '/image/repository'",
		`image: {tag: 1.10}`:                             "at '/image/tag': got number, want integer or string",
		`image: {tag: -1}`:                               "at '/image/tag': minimum: got -1, want 0",
		`image: {digest: "sha256:12"}`:                   "at '/image/digest'",
		`image: {pullPolicy: Sometimes}`:                 "at '/image/pullPolicy': value must be one of",
		`imagePullSecrets: [registry]`:                   "at '/imagePullSecrets/0': got string, want object",
		`flags: {map-sizes: 1}`:                          "at '/flags': additional properties 'map-sizes' not allowed",
		`flags: {help: true}`:                            "at '/flags': additional properties 'help' not allowed",
		`flags: {shell-sock-path: /x}`:                   "at '/flags': additional properties 'shell-sock-path' not allowed",
		`flags: {map-size-policy: many}`:                 "at '/flags/map-size-policy': got string, want integer",
		`flags: {overlay-port: 70000}`:                   "at '/flags/overlay-port': maximum: got 70,000, want 65,535",
		`flags: {map-size-policy: -1}`:                   "at '/flags/map-size-policy': minimum",
		`flags: {audit-interval: 5}`:                     "at '/flags/audit-interval': got number, want string",
		`flags: {audit-interval: 5 minutes}`:             "at '/flags/audit-interval'",
		`flags: {log-level: loud}`:                       "at '/flags/log-level': value must be one of 'debug', 'info', 'warn', 'error'",
		`flags: {backstop: "no"}`:                        "at '/flags/backstop': got string, want boolean",
		`flags: {cluster-cidrs: 10.0.0.0/8}`:             "at '/flags/cluster-cidrs': got string, want array",
		`flags: {bpffs: bpf}`:                            "at '/flags/bpffs'",
		`flags: {bpffs: null}`:                           "at '/flags': missing property 'bpffs'",
		`flags: {metrics-listen: "9881"}`:                "at '/flags/metrics-listen'",
		`flags: {metrics-listen: 9881}`:                  "at '/flags/metrics-listen': got number, want string",
		`flags: {api-listen: "127.0.0.1:0"}`:             "at '/flags/api-listen'",
		`flags: {api-listen: ""}`:                        "flags.api-listen and flags.metrics-listen are both empty",
		`extraArgs: [debug]`:                             "at '/extraArgs/0'",
		`env: [{value: x}]`:                              "at '/env/0': missing property 'name'",
		`crds: {enabled: true}`:                          "at '/crds': additional properties 'enabled' not allowed",
		`serviceAccount: {name: ""}`:                     "at '/serviceAccount/name'",
		`metrics: {podMonitor: {enabled: true}}`:         "metrics.podMonitor needs flags.metrics-listen",
		`metrics: {serviceMonitor: {enabled: true}}`:     "metrics.serviceMonitor needs flags.metrics-listen",
		`metrics: {podMonitor: {interval: often}}`:       "at '/metrics/podMonitor/interval'",
		`metrics: {prometheusRule: {groups: [{}]}}`:      "at '/metrics/prometheusRule/groups/0': missing properties 'name', 'rules'",
		`networkPolicy: {enabled: true}`:                 "networkPolicy needs flags.metrics-listen",
		`security: {privileged: yes please}`:             "at '/security/privileged': got string, want boolean",
		`security: {seccompProfile: {type: None}}`:       "at '/security/seccompProfile/type'",
		`security: {extraCapabilities: [cap_bpf]}`:       "at '/security/extraCapabilities/0'",
		`resources: {limits: {memory: lots}}`:            "at '/resources/limits/memory'",
		`updateStrategy: {type: Recreate}`:               "at '/updateStrategy/type'",
		`updateStrategy: {rollingUpdate: {maxSurge: 1}}`: "at '/updateStrategy/rollingUpdate/maxSurge'",
		`terminationGracePeriodSeconds: -1`:              "at '/terminationGracePeriodSeconds'",
		`nodeSelector: {a: 1}`:                           "at '/nodeSelector/a'",
		`tolerations: {operator: Exists}`:                "at '/tolerations': got object, want array",
		`admissionPolicy: "no"`:                          "at '/admissionPolicy': got string, want boolean",
		`podLabels: [a]`:                                 "at '/podLabels'",
		`extraVolumeMounts: [{name: a}]`:                 "at '/extraVolumeMounts/0': missing property 'mountPath'",
	} {
		t.Run(values, func(t *testing.T) {
			var parsed map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(values), &parsed))
			_, err := render(c, parsed, kubeVersion)
			require.ErrorContains(t, err, message)
		})
	}
}
