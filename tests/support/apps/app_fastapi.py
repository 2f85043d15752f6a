"""A FastAPI application as people write them around a model, and some endpoints that misbehave on purpose."""

from itertools import count

from fastapi import FastAPI, Request, UploadFile
from fastapi.responses import JSONResponse
from pydantic import BaseModel

app = FastAPI()
asked = {"predict": 0}
words = set()
flaky = count()


class Question(BaseModel):
    text: str
    top_k: int


@app.get("/health")
def health():
    return {"status": "ok"}


@app.get("/seen")
def seen():
    return {**asked, "words": sorted(words)}


@app.post("/predict")
async def predict(question: Question):
    asked["predict"] += 1
    words.add(len(question.text.split()))
    return {"label": "fine", "score": 1 / (1 + len(question.text)), "top": list(range(question.top_k))}


@app.post("/error-in-200/{name}")
async def error(name: str):
    return {"error": f"no model for {name}"}


@app.api_route("/status/{code}", methods=["GET", "POST"])
async def status(code: int):
    return JSONResponse({"detail": f"as asked: {code}"}, code)


@app.post("/flaky")
async def sometimes():
    number = next(flaky)
    if number == 0 or number % 20 > 4:
        return {"score": 0.5}
    if number % 20 < 2:
        return JSONResponse({"detail": "the queue is full"}, 503)
    return {"error": "out of memory"}


@app.post("/bytes")
async def size(request: Request):
    return {"size": len(await request.body()), "type": request.headers["content-type"]}


@app.put("/upload")
async def upload(request: Request):
    form = await request.form()
    image: UploadFile = form["image"]
    return {
        "caption_words": len(form["caption"].split()),
        "size": len(await image.read()),
        "name": image.filename,
    }


@app.get("/items/{name:path}")
async def item(name: str, q: str):
    return {"same": name == q}
