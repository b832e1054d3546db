{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef:
      name: {{ .Values.secretName }}
env:
  - name: WEIR_DATA_DIR
    value: /var/lib/weir
  - name: WEIR_INDEX_SOCKET
    value: /tmp/index/index.sock
  - name: WEIR_ALLOWED_HOSTS
    value: "{{ .Values.allowedHosts }},{{ .Release.Name }}-web"
  - name: WEIR_ROUTER_WEB
    value: "http://{{ .Release.Name }}-web:8000"
  - name: WEIR_TRUSTED_PROXIES
    value: {{ .Values.trustedProxies | quote }}
  - name: WEIR_SECURE_COOKIES
    value: "{{ if .Values.ingress.tlsSecretName }}1{{ else }}0{{ end }}"
  {{- if .podIp }}
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{/* Last, as the volumes below: a template may add to the list. */}}
volumeMounts:
  - name: data
    mountPath: /var/lib/weir
  - name: tmp
    mountPath: /tmp
{{- end -}}

{{- define "weir.pod" -}}
automountServiceAccountToken: false
{{ include "weir.confined" . }}
{{- end -}}

{{/* Of a process that looks at Pods of others: web before they are adopted, control afterwards. */}}
{{- define "weir.lookingPod" -}}
{{- if .Values.discovery.namespaces -}}
serviceAccountName: {{ .Release.Name }}-discovery
{{ include "weir.confined" . }}
{{- else -}}
{{ include "weir.pod" . }}
{{- end -}}
{{- end -}}

{{- define "weir.confined" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: data
    {{- if .Values.dataClaim }}
    persistentVolumeClaim:
      claimName: {{ .Values.dataClaim }}
    {{- else }}
    emptyDir: {}
    {{- end }}
  - name: tmp
    emptyDir: {}
{{- end -}}
