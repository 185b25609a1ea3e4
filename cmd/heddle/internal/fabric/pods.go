package fabric

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/topo/fabrictest/agent"
	"github.com/heddle-dev/heddle/topo/fabrictest/measure"
)

const (
	// name is the label and the container of the test's pods, their PriorityClass in the chart, and the prefix of their
	// names and of their Secrets'.
	name = "heddle-fabric-test"
	// port is the agent's on the host's network.
	port = "18500"
	// expires is an annotation of the Secrets: a test that died holds its groups no longer than this.
	expires = wellknown.Prefix + "expires"
	// runLabel distinguishes the pods of tests.
	runLabel = wellknown.Prefix + "fabric-test"
	// startTimeout bounds the start of pods, with the pull of their image.
	startTimeout = 5 * time.Minute
	poll         = time.Second
)

// pods are the pods of a test, one on each node, and its Secrets, one for each lowest group: the first test of a group
// has it alone.
type pods struct {
	client *cluster.Client
	o      *options
	// secrets has the Secret of each group, byNode the pod of each node, skipped why a node has none.
	secrets map[string]*corev1.Secret
	byNode  map[string]*corev1.Pod
	skipped map[string]string
	tls     *tls.Config
	// run is the value of runLabel of the test's pods.
	run string
}

func newPods(client *cluster.Client, o *options) *pods {
	return &pods{
		client: client, o: o,
		secrets: map[string]*corev1.Secret{}, byNode: map[string]*corev1.Pod{}, skipped: map[string]string{},
	}
}

// lock makes the Secret with the key for each group of the nodes, or returns an error that names the group of another
// test.
func (p *pods) lock(ctx context.Context, nodes []*node, until time.Time) error {
	certificate, key, err := agent.NewKey(time.Now())
	if err != nil {
		return err
	}
	if p.tls, err = agent.Config(certificate, key); err != nil {
		return err
	}
	for _, n := range nodes {
		group := n.group
		if p.secrets[group] != nil {
			continue
		}
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name: objectName(group), Namespace: p.o.namespace, Labels: map[string]string{cluster.AppLabel: name},
				Annotations: map[string]string{expires: until.UTC().Format(time.RFC3339)},
			},
			Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key},
		}
		made, err := p.create(ctx, secret)
		if err != nil {
			return fmt.Errorf("group %s: %w", cmp.Or(group, "of nodes without a group"), err)
		}
		p.secrets[group], p.run = made, string(made.UID)
	}
	return nil
}

// objectName returns a name for a group, which may have any characters.
func objectName(group string) string {
	text := []byte(strings.ToLower(group))
	for i, c := range text {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			text[i] = '-'
		}
	}
	return strings.Trim(name+"-"+string(text[:min(len(text), 180)]), "-")
}

func (p *pods) create(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	into := &corev1.Secret{}
	at := func() error {
		return p.client.Post().Namespace(secret.Namespace).Resource("secrets").Body(secret).Do(ctx).Into(into)
	}
	err := at()
	if !apierrors.IsAlreadyExists(err) {
		return into, err
	}
	old, readErr := cluster.Read[corev1.Secret](ctx,
		p.client.Get().Namespace(secret.Namespace).Resource("secrets").Name(secret.Name), "Secret "+secret.Name)
	if readErr != nil {
		return nil, readErr
	}
	if end, parseErr := time.Parse(time.RFC3339, old.Annotations[expires]); parseErr == nil && time.Now().Before(end) {
		return nil, fmt.Errorf("another test runs there until %s at the latest; "+
			"kubectl -n %s delete secret %s ends it", end.Format(time.RFC3339), secret.Namespace, secret.Name)
	}
	if err := p.delete(ctx, "secrets", secret.Name); err != nil {
		return nil, err
	}
	return into, at()
}

func (p *pods) delete(ctx context.Context, resource, name string) error {
	err := p.client.Delete().Namespace(p.o.namespace).Resource(resource).Name(name).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// start makes a pod for each node, and waits until each runs or cannot.
func (p *pods) start(ctx context.Context, nodes []*node) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, n := range nodes {
		if n.shared {
			p.skipped[n.name] = "its GPUs are shared"
			continue
		}
		pod := p.pod(n)
		if err := p.client.Post().Namespace(pod.Namespace).Resource("pods").Body(pod).Do(ctx).Into(pod); err != nil {
			return fmt.Errorf("make pod %s: %w", pod.Name, err)
		}
		p.byNode[n.name] = pod
	}
	for {
		list, err := cluster.Read[corev1.PodList](ctx, p.client.Get().Namespace(p.o.namespace).Resource("pods").
			Param("labelSelector", runLabel+"="+p.run), "pods of the test")
		if err != nil {
			return err
		}
		if p.look(list.Items) {
			return nil
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return p.late(ctx)
		}
	}
}

// look takes the state of the pods, skips nodes on which one cannot run, and reports whether all others run.
func (p *pods) look(list []corev1.Pod) (all bool) {
	all = true
	for node, pod := range p.byNode {
		at := slices.IndexFunc(list, func(o corev1.Pod) bool { return o.UID == pod.UID })
		if at < 0 {
			p.skip(node, "its pod is gone")
			continue
		}
		pod = &list[at]
		p.byNode[node] = pod
		busy := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		})
		switch {
		case busy:
			p.skip(node, "it is not idle")
		case cluster.Ended(pod):
			p.skip(node, cmp.Or(pod.Status.Message, "its pod ended"))
		case !cluster.IsReady(pod):
			all = false
		}
	}
	return all
}

func (p *pods) skip(node, reason string) {
	p.skipped[node] = reason
	delete(p.byNode, node)
}

// late skips the nodes whose pods have not started in time.
func (p *pods) late(ctx context.Context) error {
	if err := context.Cause(ctx); err != context.DeadlineExceeded { //nolint:errorlint // The context's own.
		return err
	}
	for node, pod := range p.byNode {
		reason := "its pod did not start in " + startTimeout.String()
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if w := s.State.Waiting; w != nil && w.Message != "" {
				reason = w.Reason + ": " + w.Message
			}
		}
		if !cluster.IsReady(pod) {
			p.skip(node, cli.Printable(reason))
		}
	}
	return nil
}

// pod has all extended resources of its node, so that it runs on an idle one alone and gives way to a job.
func (p *pods) pod(n *node) *corev1.Pod {
	secret := p.secrets[n.group]
	shared := []corev1.VolumeMount{{Name: "agent", MountPath: "/heddle"}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: objectName(n.name) + "-", Namespace: p.o.namespace,
			Labels:          map[string]string{cluster.AppLabel: name, runLabel: p.run},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID}},
		},
		Spec: corev1.PodSpec{
			SchedulerName: p.o.scheduler, PriorityClassName: name, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(1)),
			ActiveDeadlineSeconds:         new(int64((p.o.maxDuration + startTimeout).Seconds())),
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{{
						Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{n.name},
					}},
				}}},
			}},
			Volumes: []corev1.Volume{
				{Name: "agent", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					Medium: corev1.StorageMediumMemory,
				}}},
				{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret.Name}}},
			},
			InitContainers: []corev1.Container{{
				Name: "agent", Image: p.o.agentImage, VolumeMounts: shared,
				Command:         []string{"/usr/local/bin/heddle-fabric-agent", "install", "/heddle"},
				SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(0))},
			}},
			Containers: []corev1.Container{{
				Name: name, Image: p.o.image, Command: []string{agentPath, "serve", ":" + port},
				Env: []corev1.EnvVar{
					{Name: "HEDDLE_FABRIC_KEY", Value: "/heddle-key"}, {Name: "HEDDLE_FABRIC_PORT", Value: port},
				},
				Resources: corev1.ResourceRequirements{Limits: n.devices, Requests: n.devices},
				VolumeMounts: append(shared, corev1.VolumeMount{Name: "key", MountPath: "/heddle-key", ReadOnly: true},
					corev1.VolumeMount{Name: "shm", MountPath: "/dev/shm"}),
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: new(int64(0)), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"IPC_LOCK"}},
				},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.Parse(port)}},
					PeriodSeconds: 1,
				},
			}},
		},
	}
}

// agentPath is the agent in the pods.
const agentPath = "/heddle/heddle-fabric-agent"

// nodes returns the nodes with a pod, as a test runs programs on them.
func (p *pods) nodes() map[string]measure.Node {
	out := map[string]measure.Node{}
	for node, pod := range p.byNode {
		transport := &http.Transport{
			TLSClientConfig: p.tls,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return p.client.Forward(ctx, pod, port)
			},
		}
		out[node] = measure.Node{Client: &http.Client{Transport: transport}, Address: node, Host: pod.Status.PodIP}
	}
	return out
}

// clean deletes the pods and then the Secrets, so that the next test finds the nodes idle.
func (p *pods) clean(ctx context.Context) error {
	if len(p.secrets) == 0 {
		return nil
	}
	fault := p.client.Delete().Namespace(p.o.namespace).Resource("pods").
		Param("labelSelector", runLabel+"="+p.run).Do(ctx).Error()
	for _, secret := range p.secrets {
		fault = cmp.Or(fault, p.delete(ctx, "secrets", secret.Name))
	}
	if fault != nil {
		return fmt.Errorf("clean up: %w", fault)
	}
	return nil
}

// isShared reports whether pods get shares of a node's GPUs.
func isShared(list corev1.ResourceList) bool {
	for resource, n := range list {
		if strings.HasSuffix(string(resource), "/sgpu") && !n.IsZero() {
			return true
		}
	}
	return false
}

// devices returns all GPUs and HCAs of a node, and what else its device plugins offer. Of a resource that several
// containers share, one container gets each HCA once.
func devices(n *corev1.Node) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, count := range n.Status.Allocatable {
		if strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/") && !count.IsZero() {
			out[name] = count
		}
	}
	if hcas, err := allocation.ParseHCACounts(n.Annotations[wellknown.HCACounts]); err == nil {
		for name, count := range hcas.HCAs {
			if _, offered := out[corev1.ResourceName(name)]; offered {
				out[corev1.ResourceName(name)] = *resource.NewQuantity(int64(count), resource.DecimalSI)
			}
		}
	}
	return out
}
