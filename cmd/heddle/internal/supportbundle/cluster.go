package supportbundle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

const (
	// lines of a log, and how many Events of one place.
	lines     = 1000
	mostEvent = "500"
	partOf    = "app.kubernetes.io/part-of=heddle"
	scheduler = "heddle-scheduler"
)

// cluster adds what the API server has of a Node.
func (g *gathering) cluster(at *cluster.Flags, name string) {
	client, err := at.Client()
	if err != nil {
		g.lacks("all from the API server", err)
		return
	}
	ctx := g.command.Context()
	node, err := cluster.Node(ctx, client, name)
	if err == nil {
		node.ManagedFields = nil
	}
	g.json("node.json", node, err)
	report, err := cluster.Report(ctx, client, name)
	g.json("bindings.json", report, err)
	var topology json.RawMessage
	there, err := cluster.ReadPath(ctx, client, "/apis/topology.heddle.dev/v1alpha1/nodetopologies/"+name, "", &topology)
	if err == nil && !there {
		err = errors.New("not found")
	}
	g.json("nodetopology.json", topology, err)
	g.events(ctx, client, name)
	pods, err := cluster.Read[corev1.PodList](ctx,
		client.Get().Namespace(g.namespace).Resource("pods").Param("labelSelector", partOf), "pods of "+g.namespace)
	if err != nil {
		g.lacks("logs/", err)
		pods = &corev1.PodList{}
	}
	g.config(ctx, client, pods.Items)
	for i := range pods.Items {
		g.logs(ctx, client, &pods.Items[i], name)
	}
}

func (g *gathering) json(name string, object any, err error) {
	var text []byte
	if err == nil {
		text, err = json.MarshalIndent(object, "", "  ")
	}
	if err != nil {
		g.lacks(name, err)
		return
	}
	g.add(name, text)
}

// config adds the ConfigMap that the daemons read, and the scheduler's.
func (g *gathering) config(ctx context.Context, client rest.Interface, pods []corev1.Pod) {
	names := map[string][]string{configDir: cluster.ConfigNames(&corev1.PodSpec{})}
	for i := range pods {
		dir := configDir
		if cluster.Runs(&pods[i], scheduler) {
			dir = "scheduler/"
		}
		if slices.ContainsFunc(pods[i].Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "config" }) {
			names[dir] = cluster.ConfigNames(&pods[i].Spec)
		}
	}
	for dir, from := range names {
		files, err := cluster.ConfigFiles(ctx, client, g.namespace, from...)
		if err != nil {
			g.lacks(dir, err)
		}
		for key, text := range files {
			g.add(dir+key, text)
		}
	}
}

// events adds the Events of the Node and of heddle's namespace.
func (g *gathering) events(ctx context.Context, client rest.Interface, node string) {
	for file, request := range map[string]*rest.Request{
		"events-node.json": client.Get().Namespace("default").Resource("events").
			Param("fieldSelector", "involvedObject.kind=Node,involvedObject.name="+node),
		"events-daemons.json": client.Get().Namespace(g.namespace).Resource("events"),
	} {
		list, err := cluster.Read[corev1.EventList](ctx, request.Param("limit", mostEvent), "Events")
		if err == nil {
			for i := range list.Items {
				list.Items[i].ManagedFields = nil
			}
		}
		g.json(file, list, err)
	}
	g.podEvents(ctx, client, node)
}

// podEvent is an Event of the device plugin about a pod.
type podEvent struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	Type      string      `json:"type"`
	Reason    string      `json:"reason"`
	Message   string      `json:"message"`
	Count     int32       `json:"count"`
	Last      metav1.Time `json:"last"`
}

// podEvents adds the device plugin's Events about pods of all namespaces on the Node, such as
// why one has no share. Of the pods themselves it adds nothing but the names.
func (g *gathering) podEvents(ctx context.Context, client rest.Interface, node string) {
	const about = "involvedObject.kind=Pod,source=heddle-device-plugin"
	list, err := cluster.Read[corev1.EventList](ctx,
		client.Get().Resource("events").Param("fieldSelector", about).Param("limit", mostEvent), "Events of pods")
	all := []podEvent{}
	if err == nil {
		for i := range list.Items {
			if e := &list.Items[i]; e.Source.Host == node {
				pod := &e.InvolvedObject
				all = append(all, podEvent{pod.Namespace, pod.Name, e.Type, e.Reason, e.Message, e.Count, e.LastTimestamp})
			}
		}
	}
	g.json("events-pods.json", all, err)
}

// logs adds the last lines of a pod: of the Node's daemons, and of those that serve
// all Nodes.
func (g *gathering) logs(ctx context.Context, client rest.Interface, pod *corev1.Pod, node string) {
	ofAll := pod.OwnerReferences != nil && pod.OwnerReferences[0].Kind == "ReplicaSet"
	if pod.Spec.NodeName != node && !ofAll {
		return
	}
	for _, s := range pod.Status.InitContainerStatuses {
		g.log(ctx, client, pod, &s, pod.Name+"."+s.Name)
	}
	for _, s := range pod.Status.ContainerStatuses {
		g.log(ctx, client, pod, &s, pod.Name)
	}
}

// log adds the last lines of a container, and of its predecessor if it was restarted.
func (g *gathering) log(
	ctx context.Context, client rest.Interface, pod *corev1.Pod, s *corev1.ContainerStatus, name string,
) {
	for _, previous := range []bool{false, true} {
		if previous && s.RestartCount == 0 {
			continue
		}
		file := "logs/" + name + map[bool]string{true: ".previous"}[previous] + ".log"
		body, err := client.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("log").
			Param("container", cmp.Or(s.Name, pod.Name)).Param("previous", strconv.FormatBool(previous)).
			Param("tailLines", strconv.Itoa(lines)).Param("limitBytes", strconv.Itoa(maxFile)).DoRaw(ctx)
		if err != nil {
			g.lacks(file, err)
			continue
		}
		g.add(file, body)
	}
}
