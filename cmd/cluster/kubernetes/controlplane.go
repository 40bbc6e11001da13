// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/sluice-net/sluice/cmd/e2e/process"
)

const etcdURL = "http://127.0.0.1:2379"

// startControlPlane starts etcd and the API server, and when that is ready what
// needs it.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.run("etcd", "--data-dir="+c.path("etcd"), "--client-url="+etcdURL); err != nil {
		return err
	}
	if err := c.run("kube-apiserver", c.apiServerFlags()...); err != nil {
		return err
	}
	err := Await(ctx, "the API server is ready", func() error {
		if err := c.Alive(); err != nil {
			return err
		}
		_, err := c.RunKubectl(ctx, "get", "--raw=/readyz")
		return err
	})
	if err != nil {
		return err
	}
	if err := c.run("kube-controller-manager", append(c.clientFlags(controllerManager),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.path(pkiDir, serviceAccount),
		"--root-ca-file="+c.path(pkiDir, authority+".crt"),
		"--cluster-cidr="+podsCIDR,
		"--allocate-node-cidrs=false", // the Node objects have them: see register
	)...); err != nil {
		return err
	}
	if err := c.run("kube-scheduler", c.clientFlags(scheduler)...); err != nil {
		return err
	}
	return c.register(ctx)
}

// run starts a component in the cluster's network namespace.
func (c *Cluster) run(name string, args ...string) error {
	p, err := process.Start(name, c.logPath(name), exec.Command(c.path(toolsDir, name), args...))
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return err
}

// Alive fails if a process of the control plane has ended.
func (c *Cluster) Alive() error {
	for _, p := range c.processes {
		select {
		case <-p.Exited():
			return fmt.Errorf("%s ended: %s; its last lines:\n%s", p.Name, p.State(), p.LogTail(20))
		default:
		}
	}
	return nil
}

func (c *Cluster) apiServerFlags() []string {
	return []string{
		"--etcd-servers=" + etcdURL,
		"--advertise-address=" + routerIP,
		"--secure-port=" + apiServerPort,
		"--service-cluster-ip-range=" + servicesCIDR,
		"--client-ca-file=" + c.path(pkiDir, authority+".crt"),
		"--token-auth-file=" + c.path(pkiDir, tokensFile),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path(pkiDir, serviceAccount),
		"--service-account-signing-key-file=" + c.path(pkiDir, serviceAccount),
		"--requestheader-client-ca-file=" + c.path(pkiDir, authority+".crt"),
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--tls-cert-file=" + c.path(pkiDir, serving+".crt"),
		"--tls-private-key-file=" + c.path(pkiDir, serving+".key"),
		"--kubelet-client-certificate=" + c.path(pkiDir, kubeletClient+".crt"),
		"--kubelet-client-key=" + c.path(pkiDir, kubeletClient+".key"),
		"--proxy-client-cert-file=" + c.path(pkiDir, frontProxy+".crt"),
		"--proxy-client-key-file=" + c.path(pkiDir, frontProxy+".key"),
	}
}

func (c *Cluster) clientFlags(user string) []string {
	path := c.kubeconfigPath(user)
	return []string{
		"--kubeconfig=" + path,
		"--authentication-kubeconfig=" + path,
		"--authorization-kubeconfig=" + path,
		"--leader-elect=false",
	}
}

// register creates the Node objects, as a cloud provider does: with the
// addresses of their pods. The kubelet of each takes its object over.
func (c *Cluster) register(ctx context.Context) error {
	manifests := `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "` + kubeProxy + `"}]
`
	for _, node := range c.Nodes {
		manifests += fmt.Sprintf(`---
apiVersion: v1
kind: Node
metadata: {name: %s}
spec: {podCIDR: %s, podCIDRs: [%[2]s]}
`, node.Name, node.PodCIDR)
	}
	// The roles of RBAC are there some time after the API server is ready.
	return Await(ctx, "nodes are registered", func() error {
		return errors.Join(c.Alive(), c.Apply(ctx, manifests))
	})
}
