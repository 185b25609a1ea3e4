package uninstall

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// manager is the field manager of what is written.
const manager = "heddle-uninstall"

// api reads and writes objects of any API group.
type api struct{ client rest.Interface }

func (a api) read(ctx context.Context, path string, into any) (bool, error) {
	return cluster.ReadPath(ctx, a.client, path, "", into)
}

// remove deletes an object, or all of a kind that a selector matches. A missing object or kind is
// not an error.
func (a api) remove(ctx context.Context, path, selector string) error {
	request := a.client.Delete().AbsPath(path).SetHeader("Accept", "application/json")
	if selector != "" {
		request = request.Param("labelSelector", selector)
	}
	if err := request.Do(ctx).Error(); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", path, err)
	}
	return nil
}

func (a api) patch(ctx context.Context, kind types.PatchType, path, fieldManager string, patch any) error {
	body, err := json.Marshal(patch)
	if err == nil {
		err = a.client.Patch(kind).AbsPath(path).SetHeader("Accept", "application/json").
			Param("fieldManager", fieldManager).Body(body).Do(ctx).Error()
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (a api) patchStatus(ctx context.Context, node string, status any) error {
	return a.patch(ctx, types.StrategicMergePatchType, "/api/v1/nodes/"+node+"/status", manager,
		map[string]any{"status": status})
}

func (a api) annotate(ctx context.Context, node string, annotations map[string]any) error {
	return a.patch(ctx, types.MergePatchType, "/api/v1/nodes/"+node, manager,
		map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

// nodes returns all Nodes.
func (a api) nodes(ctx context.Context) (all []*corev1.Node, err error) {
	err = each(ctx, a.client, "", "nodes", "", func(node *corev1.Node) { all = append(all, node) })
	return all, err
}

// pods calls use with every pod that a selector matches, of a namespace or, if empty, of all.
func (a api) pods(ctx context.Context, namespace, selector string, use func(*corev1.Pod)) error {
	return each(ctx, a.client, namespace, "pods", selector, use)
}

// each lists objects page by page.
func each[T any](ctx context.Context, client rest.Interface, namespace, resource, selector string, use func(*T)) error {
	pages := func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
		list, err := client.Get().Namespace(namespace).Resource(resource).
			VersionedParams(&page, metav1.ParameterCodec).Do(ctx).Get()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", resource, err)
		}
		return list, nil
	}
	return pager.New(pages).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		if v, ok := any(o).(*T); ok {
			use(v)
		}
		return nil
	})
}
