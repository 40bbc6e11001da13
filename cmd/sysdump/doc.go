// SPDX-License-Identifier: Apache-2.0

// Package sysdump collects what a bug report needs into one archive, and no
// secrets.
//
//	agent's API ──┐
//	kernel: BPF ──┼──► bounded ──► redacted ──► .tar.gz
//	node: /proc ──┘        └── what could not be had ──► errors.txt
//
// There is no way into the [Archive] that is not bounded and redacted. Only files
// that are named here are read, none of which holds a secret by its nature: no
// kubeconfig, no token, no environment but the agent's own variables. What looks
// like a secret in them all the same is replaced. Nothing fails as something
// cannot be had: a report about an agent that is dead is worth most.
package sysdump
