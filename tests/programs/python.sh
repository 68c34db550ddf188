case "$*" in
    -c*) echo VERSION ;;
    --version) echo Python VERSION.1 ;;
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip install"*) echo "$0 $*" >>log ;;
esac
