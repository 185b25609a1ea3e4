//go:build linux

package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki is the certificate authority of one cluster and the directory its files go
// to. A cluster lives for minutes; its authority does not outlive it.
type pki struct {
	dir    string
	ca     *x509.Certificate
	caKey  crypto.Signer
	caPEM  []byte
	serial int64
}

func newPKI(dir string) (*pki, error) {
	p := &pki{dir: dir, serial: 1}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create certificate directory: %w", err)
	}
	key, _, err := p.newKey("ca")
	if err != nil {
		return nil, err
	}
	p.caKey = key
	p.ca = p.template("heddle-test", "")
	p.ca.IsCA, p.ca.BasicConstraintsValid = true, true
	p.ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	p.ca.ExtKeyUsage = nil
	p.caPEM, err = p.sign("ca", p.ca, key.Public())
	return p, err
}

// writeAll makes every certificate, key and kubeconfig of a cluster.
func (p *pki) writeAll(node, server string, addresses []net.IP) error {
	apiserver := p.template("kube-apiserver", "")
	apiserver.IPAddresses = addresses
	apiserver.DNSNames = []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
	}
	if _, _, err := p.issue("apiserver", apiserver); err != nil {
		return err
	}
	client := p.template("kube-apiserver-kubelet-client", "system:masters")
	if _, _, err := p.issue("apiserver-kubelet-client", client); err != nil {
		return err
	}
	for _, user := range []struct{ file, name, group string }{
		{"admin", "admin", "system:masters"},
		{"kube-controller-manager", "system:kube-controller-manager", ""},
		{"kube-scheduler", "system:kube-scheduler", ""},
		{"kubelet", "system:node:" + node, "system:nodes"},
	} {
		cert, key, err := p.issue(user.file, p.template(user.name, user.group))
		if err != nil {
			return err
		}
		if err := p.write(user.file+".kubeconfig", kubeconfig(server, p.caPEM, cert, key)); err != nil {
			return err
		}
	}
	return p.serviceAccountKey()
}

// serviceAccountKey makes the pair that signs and verifies service account tokens.
func (p *pki) serviceAccountKey() error {
	key, _, err := p.newKey("sa")
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode service account key: %w", err)
	}
	return p.write("sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func (p *pki) template(name, group string) *x509.Certificate {
	p.serial++
	t := &x509.Certificate{
		SerialNumber: big.NewInt(p.serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), // Tolerates a clock that is set back.
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if group != "" {
		t.Subject.Organization = []string{group}
	}
	return t
}

func (p *pki) issue(name string, t *x509.Certificate) (cert, key []byte, err error) {
	signer, key, err := p.newKey(name)
	if err != nil {
		return nil, nil, err
	}
	cert, err = p.sign(name, t, signer.Public())
	return cert, key, err
}

func (p *pki) sign(name string, t *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, p.ca, public, p.caKey)
	if err != nil {
		return nil, fmt.Errorf("sign certificate %s: %w", name, err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return data, p.write(name+".crt", data)
}

func (p *pki) newKey(name string) (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key %s: %w", name, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key %s: %w", name, err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return key, data, p.write(name+".key", data)
}

func (p *pki) write(name string, data []byte) error {
	if err := os.WriteFile(filepath.Join(p.dir, name), data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// kubeconfig is written as JSON, which is YAML.
func kubeconfig(server string, ca, cert, key []byte) []byte {
	type m = map[string]any
	data, err := json.MarshalIndent(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "heddle",
		"clusters": []m{{"name": "heddle", "cluster": m{"server": server, "certificate-authority-data": ca}}},
		"users":    []m{{"name": "heddle", "user": m{"client-certificate-data": cert, "client-key-data": key}}},
		"contexts": []m{{"name": "heddle", "context": m{"cluster": "heddle", "user": "heddle"}}},
	}, "", "  ")
	if err != nil {
		panic(err) // Strings and bytes only: cannot fail.
	}
	return append(data, '\n')
}
