// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a Kubernetes cluster on this machine, the one of the
// tests, which are here under the build tag cluster: see README.md.
package main
