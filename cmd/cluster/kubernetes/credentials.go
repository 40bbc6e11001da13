// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"time"
)

// Files in the directory of keys; a certificate NAME is NAME.crt and NAME.key.
const (
	authority      = "ca"
	serving        = "apiserver"
	kubeletClient  = "kubelet-client"
	frontProxy     = "front-proxy"
	serviceAccount = "service-accounts.key" // signs their tokens
	tokensFile     = "tokens.csv"
)

// Users with a token and a kubeconfig, besides one for each node.
const (
	admin             = "admin"
	controllerManager = "system:kube-controller-manager"
	scheduler         = "system:kube-scheduler"
	kubeProxy         = "system:kube-proxy"
)

// Groups of users.
const (
	masters = "system:masters"
	nodes   = "system:nodes"
)

const validity = 24 * time.Hour

// signer makes certificates.
type signer struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

// writeCredentials writes the certificates of the API server, and a token and
// a kubeconfig for each of its clients.
func (c *Cluster) writeCredentials(context.Context) error {
	ca, err := c.newSigner()
	if err != nil {
		return err
	}
	for _, leaf := range []x509.Certificate{
		{
			Subject:     pkix.Name{CommonName: serving},
			IPAddresses: []net.IP{net.ParseIP(routerIP), net.ParseIP(kubernetesIP)},
			DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		},
		{Subject: pkix.Name{CommonName: kubeletClient, Organization: []string{masters}}},
		{Subject: pkix.Name{CommonName: frontProxy}},
	} {
		if err := c.writeLeaf(ca, leaf); err != nil {
			return err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeKey(c.path(pkiDir, serviceAccount), key); err != nil {
		return err
	}
	return c.writeUsers()
}

func (c *Cluster) newSigner() (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &signer{key: key, certificate: &x509.Certificate{
		Subject:               pkix.Name{CommonName: authority},
		BasicConstraintsValid: true,
		IsCA:                  true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}}
	return ca, c.writeCertificate(ca, *ca.certificate, key)
}

func (c *Cluster) writeLeaf(ca *signer, leaf x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return c.writeCertificate(ca, leaf, key)
}

// writeCertificate writes a certificate, named by its common name, and its key.
func (c *Cluster) writeCertificate(
	ca *signer, certificate x509.Certificate, key *ecdsa.PrivateKey,
) error {
	ca.serial++
	certificate.SerialNumber = big.NewInt(ca.serial)
	certificate.NotBefore = time.Now().Add(-time.Hour)
	certificate.NotAfter = time.Now().Add(validity)
	der, err := x509.CreateCertificate(
		rand.Reader, &certificate, ca.certificate, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	path := c.path(pkiDir, certificate.Subject.CommonName)
	if err := writePEM(path+".crt", "CERTIFICATE", der); err != nil {
		return err
	}
	return writeKey(path+".key", key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeUsers writes tokens, which are the users' names, and kubeconfigs.
func (c *Cluster) writeUsers() error {
	groups := map[string]string{admin: masters, controllerManager: "", scheduler: "", kubeProxy: ""}
	for _, node := range c.Nodes {
		groups[node.user()] = nodes
	}
	var tokens strings.Builder
	for user, group := range groups {
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", user, user, user, group)
		text := fmt.Sprintf(kubeconfig, routerIP, apiServerPort, c.path(pkiDir, authority+".crt"), user)
		if err := os.WriteFile(c.kubeconfigPath(user), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(c.path(pkiDir, tokensFile), []byte(tokens.String()), 0o600)
}

func (c *Cluster) kubeconfigPath(user string) string {
	return c.path(pkiDir, strings.ReplaceAll(user, ":", "-")+".kubeconfig")
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "https://%s:%s", certificate-authority: %s}}]
users: [{name: user, user: {token: "%s"}}]
contexts: [{name: context, context: {cluster: cluster, user: user}}]
current-context: context
`
